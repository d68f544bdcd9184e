// Runs a convolution node on the CPU. A machine with a GPU needs it for its CPU sessions, as the name is registered
// there; machines without one inline the function and run ONNX Runtime's own convolutions.
#pragma once

#include "call/fused_kernel.h"

namespace onnxopt {

class ConvolutionCpuKernel final : public FusedKernel {
 public:
  using FusedKernel::FusedKernel;
  void Compute(OrtKernelContext* context) const override;
};

}  // namespace onnxopt
