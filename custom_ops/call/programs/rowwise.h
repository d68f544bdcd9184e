// One call of a rowwise kernel: its tensors, and the grid of rows that it runs over.
#pragma once

#include "call/programs/pointwise.h"
#include "program/programs/rowwise.h"

namespace onnxopt {

// A flattened domain [outer, columns, inner] of outer * inner > 0 rows; columns may be 0. Inputs and outputs are those
// of the domain; row_access says how inputs with one element a row lie over the rows. Outputs that nothing wants, or
// that are empty, are null.
struct Grid {
  Domain domain;
  Access row_access[kMaxInputs];
  std::uint64_t outer;
  std::uint64_t columns;
  std::uint64_t inner;

  std::uint64_t rows() const { return outer * inner; }
};

// What runs a rowwise kernel over a grid. Run may be called by several threads at once.
class RowKernel : public FusedKernel {
 public:
  // rows: the kernel's meaning, or a part of it.
  RowKernel(const Kernel& kernel, const RowProgram& rows) : FusedKernel(kernel), rows_(rows) {}

  // Throws Error where the shapes do not broadcast or cannot be reshaped.
  void Compute(OrtKernelContext* context) const final;

 protected:
  const RowProgram& rows() const { return rows_; }

 private:
  void ComputeIndexed(OrtKernelContext* context) const;
  virtual void Run(const Grid& grid, OrtKernelContext* context) const = 0;

  const RowProgram& rows_;
  CheckedShapes checked_;
};

}  // namespace onnxopt
