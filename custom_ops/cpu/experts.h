// Runs mixtures of experts on the CPU, for CPU sessions on a machine with a GPU; others inline the function.
#pragma once

#include "call/experts.h"
#include "call/fused_kernel.h"
#include "cpu/blocks/plan_cache.h"

namespace onnxopt {

class ExpertsCpuKernel final : public FusedKernel {
 public:
  explicit ExpertsCpuKernel(const Kernel& kernel);

  void Compute(OrtKernelContext* context) const override;

 private:
  void Token(const ExpertsCall& call, std::int64_t token) const;
  // What an expert computes of a token: `columns` float32, not yet multiplied by a factor.
  std::vector<float> Expert(const ExpertsCall& call, const std::vector<float>& x, std::int64_t expert) const;

  const Experts& meaning_;
  const Program activation_;  // with fused primitives
  const PlanCache plans_;
};

}  // namespace onnxopt
