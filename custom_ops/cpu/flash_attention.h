// Runs attention of many queries on the CPU, for CPU sessions on a machine with a GPU; others inline the function.
#pragma once

#include "call/fused_kernel.h"

namespace onnxopt {

class FlashAttentionCpuKernel final : public FusedKernel {
 public:
  using FusedKernel::FusedKernel;
  void Compute(OrtKernelContext* context) const override;
};

}  // namespace onnxopt
