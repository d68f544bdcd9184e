// ONNX Runtime's device memory.
#pragma once

#include "support/ort.h"

namespace onnxopt::cuda {

// ONNX Runtime's allocator for the provider that a kernel was created for.
class Allocator {
 public:
  explicit Allocator(const OrtKernelInfo* info);
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;
  ~Allocator();

  OrtAllocator* get() const { return allocator_; }

 private:
  OrtAllocator* allocator_ = nullptr;
};

}  // namespace onnxopt::cuda
