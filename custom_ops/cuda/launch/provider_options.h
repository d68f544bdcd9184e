// Options of ONNX Runtime's CUDA provider that kernels follow.
#pragma once

#include "support/ort.h"

namespace onnxopt::cuda {

// The provider option use_tf32: whether float32 products may round their operands to TF32. False for an ONNX Runtime
// that does not tell.
bool UsesTf32(const OrtKernelContext* context);

}  // namespace onnxopt::cuda
