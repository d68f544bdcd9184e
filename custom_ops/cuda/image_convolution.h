// Runs convolutions of images on the GPU.
#pragma once

#include "call/fused_kernel.h"
#include "cuda/launch/launcher.h"
#include "program/generated/image_convolution.h"

namespace onnxopt::cuda {

// Launching neither synchronizes nor allocates: it is safe under CUDA graph capture. Thread-safe.
class ImageConvolutionCudaKernel final : public FusedKernel {
 public:
  ImageConvolutionCudaKernel(const Kernel& kernel, const Library& library)
      : FusedKernel(kernel), convolution_(kernel.meaning.As<ImageConvolution>()), launcher_(kernel, library) {}

  void Compute(OrtKernelContext* context) const override;

 private:
  const ImageConvolution& convolution_;
  const Launcher launcher_;
};

}  // namespace onnxopt::cuda
