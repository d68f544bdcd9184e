// Runs depthwise convolutions on the CPU: row by row of the result, over ONNX Runtime's threads.
#pragma once

#include "call/depthwise.h"
#include "call/fused_kernel.h"
#include "cpu/blocks/plan_cache.h"

namespace onnxopt {

class DepthwiseCpuKernel final : public FusedKernel {
 public:
  explicit DepthwiseCpuKernel(const Kernel& kernel);

  void Compute(OrtKernelContext* context) const override;

 private:
  const Depthwise& depthwise_;
  const Program before_;  // with fused primitives; empty where there is none
  const Program after_;
  const PlanCache before_plans_;
  const PlanCache after_plans_;
};

}  // namespace onnxopt
