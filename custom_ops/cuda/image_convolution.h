// Convolutions of images on the GPU: which entry point runs a call, and what it is handed.
#pragma once

#include "cuda/core_kernel.h"
#include "image_convolution/abi.h"
#include "program/generated/image_convolution.h"

namespace onnxopt::cuda {

struct ImageConvolutionCore
    : Core<ImageConvolutionCore, ImageConvolution, CoreCall, CoreLaunch<ImageConvolutionParams>> {
  static constexpr bool kAsksResident = true;

  static bool HasFloat32Products(const ImageConvolution& convolution) { return convolution.dtype() == Dtype::kFloat32; }

  // Nothing where an entry point's indices cannot have the sizes.
  static std::optional<Launch> LaunchOf(const ImageConvolution& convolution, const Variant& variant,
                                        const CoreCall& call, const CoreGpu& gpu, std::uint64_t pass);

  // Whether it has a launch, its block the shared memory, and its products round as the call may.
  static bool Fits(const ImageConvolution& convolution, const Variant& variant, const CoreCall& call,
                   const CoreGpu& gpu);
};

using ImageConvolutionCudaKernel = CoreKernel<ImageConvolutionCore>;

}  // namespace onnxopt::cuda
