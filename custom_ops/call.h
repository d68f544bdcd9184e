// One call of a fused node: its tensors, and the domains that its kernel runs over.
#pragma once

#include "fused_kernel.h"
#include "ort.h"
#include "shape.h"

namespace onnxopt {

// A flattened domain of `count` > 0 elements. input, access: one a leaf of the program. output[k] is null where output
// k has another shape; inputs that do not broadcast into the domain cannot matter to the outputs that are written and
// have no run.
struct Domain {
  std::uint64_t count;
  const void* input[kMaxInputs];
  Access access[kMaxInputs];
  Condition condition[kMaxConditions];
  void* output[kMaxOutputs];
};

// What runs a pointwise kernel over a domain. Run may be called by several threads at once.
class PointwiseKernel : public FusedKernel {
 public:
  using FusedKernel::FusedKernel;

  // Runs once for each distinct output shape that is not empty. Throws Error where the input shapes do not broadcast.
  void Compute(OrtKernelContext* context) const final;

 private:
  void ComputeIndexed(OrtKernelContext* context, const Shape* shapes, const void* const* data) const;
  virtual void Run(const Domain& domain, OrtKernelContext* context) const = 0;
};

// The shape of output `k` for these input shapes. Throws Error where they do not broadcast.
Shape OutputShape(const Program& program, std::size_t k, const Shape* inputs);

}  // namespace onnxopt
