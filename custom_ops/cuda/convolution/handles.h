// Handles of cuDNN.
#pragma once

#include <memory>
#include <mutex>

#include "cuda/convolution/cudnn.h"

namespace onnxopt::cuda {

// A handle, and the lock under which it is used.
class ConvolutionHandle {
 public:
  // The context must be current. Throws Error where cuDNN does not start.
  explicit ConvolutionHandle(const cudnn::Api& api);
  ConvolutionHandle(const ConvolutionHandle&) = delete;
  ConvolutionHandle& operator=(const ConvolutionHandle&) = delete;
  ~ConvolutionHandle();

  std::mutex mutex;
  cudnn::Handle raw = nullptr;

 private:
  const cudnn::Api& api_;
};

// The handle of a stream of a context, made when it is first asked for. It takes megabytes of the GPU's memory and
// lives as long as somebody holds it: kernels keep what they used, as captured CUDA graphs may refer to what it holds,
// and ONNX Runtime makes a stream for every session. The context must be current. Throws Error where cuDNN does not
// start.
std::shared_ptr<ConvolutionHandle> HandleOf(const cudnn::Api& api, Context context, Stream stream);

// A handle with which plans of a context are built; no work runs on it. There are as many as threads should build at
// once, and they are given out in turn. They live as long as the process, as plans go on referring to them.
ConvolutionHandle& BuilderOf(const cudnn::Api& api, Context context);

}  // namespace onnxopt::cuda
