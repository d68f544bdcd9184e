// Which entry points run a convolution.
#pragma once

#include <memory>

#include "cuda/launch/library.h"
#include "cuda/own_convolution/own_convolution.h"
#include "kernel_file/kernel.h"

namespace onnxopt::cuda {

// nullptr where a convolution has no entry points. kernel outlives the result.
std::unique_ptr<const OwnConvolution> MakeOwnConvolution(const Kernel& kernel, const Library& library);

}  // namespace onnxopt::cuda
