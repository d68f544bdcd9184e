// Runs depthwise convolutions on the CPU: row by row of the result, over ONNX Runtime's threads.
#pragma once

#include "call/depthwise.h"
#include "call/fused_kernel.h"
#include "cpu/blocks/plan_cache.h"

namespace onnxopt {

// The convolution of a kernel of any kind.
class DepthwiseCpuRunner {
 public:
  explicit DepthwiseCpuRunner(const Depthwise& depthwise);

  // Computes the result of a call that is not empty.
  void Run(const DepthwiseCall& call, OrtKernelContext* context) const;

 private:
  const Depthwise& depthwise_;
  const Program before_;  // with fused primitives; empty where there is none
  const Program after_;
  const PlanCache before_plans_;
  const PlanCache after_plans_;
};

class DepthwiseCpuKernel final : public FusedKernel {
 public:
  explicit DepthwiseCpuKernel(const Kernel& kernel)
      : FusedKernel(kernel), depthwise_(kernel.meaning.As<Depthwise>()), runner_(depthwise_) {}

  void Compute(OrtKernelContext* context) const override;

 private:
  const Depthwise& depthwise_;
  const DepthwiseCpuRunner runner_;
};

}  // namespace onnxopt
