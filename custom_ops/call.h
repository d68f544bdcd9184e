// One call of a fused node: its tensors, and the domains that its kernel runs over.
#pragma once

#include "kernel_file.h"
#include "ort.h"
#include "shape.h"

namespace onnxopt {

// A flattened domain of `count` > 0 elements. output[k] is null where output k has another shape; inputs that do not
// broadcast into the domain cannot matter to the outputs that are written and have no run.
struct Domain {
  std::uint64_t count;
  const void* input[kMaxInputs];
  Access access[kMaxInputs];
  void* output[kMaxOutputs];
};

// What runs a kernel over a domain. Run may be called by several threads at once.
class PointwiseKernel {
 public:
  explicit PointwiseKernel(const Kernel& kernel) : kernel_(kernel) {}
  PointwiseKernel(const PointwiseKernel&) = delete;
  PointwiseKernel& operator=(const PointwiseKernel&) = delete;
  virtual ~PointwiseKernel() = default;

  // Computes one fused node: allocates its outputs and runs once for each distinct output shape that is not empty.
  // Throws Error where the input shapes do not broadcast.
  void Compute(OrtKernelContext* context) const;

  const Kernel& kernel() const { return kernel_; }

 private:
  virtual void Run(const Domain& domain, OrtKernelContext* context) const = 0;

  const Kernel& kernel_;
};

// The shape of output `k` for these input shapes. Throws Error where they do not broadcast.
Shape OutputShape(const Program& program, std::size_t k, const Shape* inputs);

}  // namespace onnxopt
