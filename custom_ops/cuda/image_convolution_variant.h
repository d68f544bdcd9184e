// What an entry point of a convolution of images is handed for a call.
#pragma once

#include <optional>
#include <vector>

#include "call/image_convolution.h"
#include "image_convolution/abi.h"
#include "kernel_file/kernel.h"

namespace onnxopt::cuda {

struct ImageConvolutionLaunch {
  ImageConvolutionParams params;
  unsigned blocks;
};

// The launch of an entry point for a call that is not empty, nothing where its indices cannot have the sizes. resident:
// blocks that the GPU runs at once.
std::optional<ImageConvolutionLaunch> LaunchOf(const ImageConvolution& convolution, const Variant& variant,
                                               const ImageConvolutionCall& call, unsigned resident);

// Whether a call may run an entry point: tf32 tells whether float32 products may round their operands to it.
bool Allows(const ImageConvolution& convolution, const Variant& variant, bool tf32);

// The first entry point that is allowed and fits, and whose block has at most `shared` bytes of shared memory, else
// variants.size().
std::size_t ChooseImageConvolution(const ImageConvolution& convolution, const std::vector<Variant>& variants,
                                   const ImageConvolutionCall& call, unsigned shared, bool tf32);

}  // namespace onnxopt::cuda
