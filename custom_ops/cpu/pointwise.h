// Runs a fused node on the CPU: block by block in cache, over ONNX Runtime's threads.
#pragma once

#include "call/programs/pointwise.h"
#include "cpu/blocks/plan_cache.h"
#include "cpu/blocks/tiling.h"

namespace onnxopt {

// What one element takes one thread, about.
double NanosecondsPerElement(const Program& program);

// Computes the domain's elements first .. last - 1 on the calling thread. `tiling` and `plan` are of this domain.
void RunBlocks(const Program& program, const Plan& plan, const Tiling& tiling, const Domain& domain,
               std::uint64_t first, std::uint64_t last);

class PointwiseCpuKernel final : public PointwiseKernel {
 public:
  explicit PointwiseCpuKernel(const Kernel& kernel);

 private:
  void Run(const Domain& domain, OrtKernelContext* context) const override;

  const Program program_;  // the kernel's, with fused primitives
  const double cost_;      // estimated nanoseconds an element
  const PlanCache plans_;
};

}  // namespace onnxopt
