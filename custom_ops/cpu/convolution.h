// Runs a convolution node on the CPU. A machine with a GPU needs it for its CPU sessions, as the name is registered
// there; machines without one inline the function and run ONNX Runtime's own convolutions.
#pragma once

#include "call/convolution.h"
#include "call/fused_kernel.h"

namespace onnxopt {

class ConvolutionCpuKernel final : public FusedKernel {
 public:
  using FusedKernel::FusedKernel;
  void Compute(OrtKernelContext* context) const override;
};

// One convolution of tensors that have no other channels between their pixels, on ONNX Runtime's threads; the result is
// not empty. inputs: in the order of the convolution's positions.
void RunConvolution(OrtKernelContext* context, const Convolution& convolution, const ConvolutionSizes& sizes,
                    const void* const* inputs, void* output);

}  // namespace onnxopt
