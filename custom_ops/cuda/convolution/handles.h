// Handles of cuDNN.
#pragma once

#include <memory>
#include <mutex>

#include "cuda/convolution/cudnn.h"

namespace onnxopt::cuda {

// A handle, and the lock under which it is used.
struct ConvolutionHandle {
  std::mutex mutex;
  cudnn::Handle raw = nullptr;
};

// The handle of a stream of a context, made when it is first asked for. Lives as long as the process: captured CUDA
// graphs may refer to what it holds. The context must be current. Throws Error where cuDNN does not start.
ConvolutionHandle& HandleOf(const cudnn::Api& api, Context context, Stream stream);

// A handle with which plans of a context are built; no work runs on it. There are as many as threads should build at
// once, and they are given out in turn.
ConvolutionHandle& BuilderOf(const cudnn::Api& api, Context context);

}  // namespace onnxopt::cuda
