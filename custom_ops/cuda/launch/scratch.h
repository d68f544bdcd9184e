// Device memory for the partial results that several blocks share, from ONNX Runtime's allocator.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/launch/allocator.h"
#include "cuda/launch/driver.h"

namespace onnxopt::cuda {

// One buffer a stream: what runs on a stream runs in order. Buffers live as long as the kernel, as captured CUDA graphs
// go on using their addresses. Thread-safe.
class StreamScratch {
 public:
  explicit StreamScratch(const OrtKernelInfo* info) : allocator_(info) {}
  StreamScratch(const StreamScratch&) = delete;
  StreamScratch& operator=(const StreamScratch&) = delete;
  ~StreamScratch();

  // At least so many bytes. Allocates where a stream's calls needed fewer so far. Throws Error if there is no memory.
  void* Of(Stream stream, std::size_t bytes) const;

 private:
  struct Buffer {
    void* data = nullptr;
    std::size_t bytes = 0;
  };

  const Allocator allocator_;
  mutable std::mutex mutex_;
  mutable std::map<Stream, Buffer> buffers_;
  mutable std::vector<void*> allocated_;
};

}  // namespace onnxopt::cuda
