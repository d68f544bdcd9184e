// Handles of cuDNN. They take megabytes of the GPU's memory and are kept as long as the process: captured CUDA graphs
// may refer to what a handle holds.
#pragma once

#include <mutex>

#include "cuda/convolution/cudnn.h"

namespace onnxopt::cuda {

// A handle for the time in which a thread enqueues convolutions on a stream.
//
// Threads that enqueue at once have different handles. A stream gets the handle back that it had last, unless another
// thread enqueues with that one. ONNX Runtime makes streams for every session and for every thread that runs it, so
// there are not more handles than kMaxIdle, or than threads that enqueued at once.
class BorrowedHandle {
 public:
  // The context must be current. Throws Error where cuDNN does not start.
  BorrowedHandle(const cudnn::Api& api, Context context, Stream stream);
  BorrowedHandle(const BorrowedHandle&) = delete;
  BorrowedHandle& operator=(const BorrowedHandle&) = delete;
  ~BorrowedHandle();

  cudnn::Handle raw() const;

  static constexpr std::size_t kMaxIdle = 8;  // handles of a context that wait for their streams

 private:
  struct Kept;
  struct Pool;
  static Pool& Handles();

  Kept* kept_;
};

// A handle with which plans of a context are built; no work runs on it.
struct BuilderHandle {
  std::mutex mutex;
  cudnn::Handle raw = nullptr;
};

// There are as many builders of a context as threads should build at once, and they are given out in turn. Plans go on
// referring to them. The context must be current. Throws Error where cuDNN does not start.
BuilderHandle& BuilderOf(const cudnn::Api& api, Context context);

}  // namespace onnxopt::cuda
