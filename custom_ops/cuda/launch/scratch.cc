#include "cuda/launch/scratch.h"

#include <string>

namespace onnxopt::cuda {

CallScratch::~CallScratch() {
  for (void* data : taken_) allocator_.get()->Free(allocator_.get(), data);
}

void* CallScratch::Of(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  if (bytes <= bytes_) return taken_.back();
  taken_.reserve(taken_.size() + 1);
  OrtAllocator* const allocator = allocator_.get();
  // Where there is no memory, GetScratchBuffer would end the process: it throws, and is declared not to.
  void* data = allocator->Alloc(allocator, bytes);
  if (data == nullptr) throw Error("no memory for a workspace of " + std::to_string(bytes) + " bytes on the GPU");
  allocator->Free(allocator, data);
  Check(Ort().KernelContext_GetScratchBuffer(call_, allocator->Info(allocator), bytes, &data));
  taken_.push_back(data);
  bytes_ = bytes;
  return data;
}

}  // namespace onnxopt::cuda
