// One call of a fused node: its tensors, and the domains that its kernel runs over.
#pragma once

#include "call/fused_kernel.h"
#include "call/programs/checked_shapes.h"
#include "program/programs/pointwise.h"
#include "support/ort.h"

namespace onnxopt {

// A flattened domain of `count` > 0 elements. input, access: one a leaf of the program. output[k] is null where output
// k has another shape; inputs that do not broadcast into the domain cannot matter to the outputs that are written and
// have no run. indexed: accesses may have any step, and guards. Then the input of a leaf that is a condition is null,
// and its guards are that condition alone. conditional: conditions choose between values, so that not every
// value that is computed is meant.
struct Domain {
  std::uint64_t count;
  const void* input[kMaxInputs];
  Access access[kMaxInputs];
  Condition condition[kMaxConditions];
  void* output[kMaxOutputs];
  bool indexed = false;
  bool conditional = false;

  // The condition that leaf k is.
  const Condition& ConditionOf(std::size_t k) const {
    return condition[static_cast<std::size_t>(__builtin_ctz(access[k].guards))];
  }
};

// What runs a pointwise kernel over a domain. Run may be called by several threads at once.
class PointwiseKernel : public FusedKernel {
 public:
  explicit PointwiseKernel(const Kernel& kernel) : FusedKernel(kernel), program_(kernel.meaning.As<Program>()) {}

  // Runs once for each distinct output shape that is not empty. Throws Error where the input shapes do not broadcast.
  void Compute(OrtKernelContext* context) const final;

  static bool MayRunInPlace(const Kernel& kernel);

 protected:
  const Program& program() const { return program_; }

 private:
  void ComputeIndexed(OrtKernelContext* context, const Shape* shapes, const void* const* data) const;
  virtual void Run(const Domain& domain, OrtKernelContext* context) const = 0;

  const Program& program_;
  CheckedShapes checked_;
};

// The inputs of a call: dtypes, shapes and data.
struct Inputs {
  const std::vector<Dtype>& dtypes;
  const Shape* shapes;
  const void* const* data;
};

// Fills in what the leaves of an indexed domain are, whose count > 0 is set. Throws Error where an access would read
// outside of its input. checked: the shapes of which this is known not to be.
void FillLeaves(const Indexing& index, const Inputs& inputs, const Sizes& sizes, const CheckedShapes& checked,
                Domain* domain);

// The shape of output `k` for these input shapes. Throws Error where they do not broadcast.
Shape OutputShape(const Program& program, std::size_t k, const Shape* inputs);

}  // namespace onnxopt
