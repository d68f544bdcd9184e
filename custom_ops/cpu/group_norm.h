// Runs group norms on the CPU: a sample's means and variances first, then its pixels, over ONNX Runtime's threads.
#pragma once

#include "call/fused_kernel.h"
#include "call/group_norm.h"
#include "cpu/blocks/plan_cache.h"

namespace onnxopt {

class GroupNormCpuKernel final : public FusedKernel {
 public:
  explicit GroupNormCpuKernel(const Kernel& kernel);

  void Compute(OrtKernelContext* context) const override;

 private:
  const GroupNorm& norm_;
  const Program before_;  // with fused primitives; empty where there is none
  const Program after_;
  const PlanCache before_plans_;
  const PlanCache after_plans_;
};

}  // namespace onnxopt
