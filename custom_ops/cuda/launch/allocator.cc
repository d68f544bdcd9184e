#include "cuda/launch/allocator.h"

namespace onnxopt::cuda {

Allocator::Allocator(const OrtKernelInfo* info) {
  Check(Ort().KernelInfoGetAllocator(info, OrtMemTypeDefault, &allocator_));
}

Allocator::~Allocator() {
  if (allocator_ != nullptr) Ort().ReleaseAllocator(allocator_);
}

}  // namespace onnxopt::cuda
