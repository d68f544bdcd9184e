#include "cuda/launch/scratch.h"

#include <algorithm>
#include <string>

namespace onnxopt::cuda {

StreamScratch::~StreamScratch() {
  for (void* data : allocated_) allocator_.get()->Free(allocator_.get(), data);
}

void* StreamScratch::Of(Stream stream, std::size_t bytes) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  Buffer& buffer = buffers_[stream];
  if (buffer.bytes < bytes) {
    const std::size_t wanted = std::max(bytes, 2 * buffer.bytes);
    void* const data = allocator_.get()->Alloc(allocator_.get(), wanted);
    if (data == nullptr) throw Error("no memory for partial results of " + std::to_string(wanted) + " bytes");
    allocated_.push_back(data);
    buffer = {data, wanted};
  }
  return buffer.data;
}

}  // namespace onnxopt::cuda
