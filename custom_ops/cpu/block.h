// Runs a block of convolutions on the CPU, for the CPU sessions of a machine with a GPU.
#pragma once

#include "call/fused_kernel.h"

namespace onnxopt {

class BlockCpuKernel final : public FusedKernel {
 public:
  using FusedKernel::FusedKernel;
  void Compute(OrtKernelContext* context) const override;
};

}  // namespace onnxopt
