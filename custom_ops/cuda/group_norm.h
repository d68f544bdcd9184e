// Runs group norms on the GPU.
#pragma once

#include "call/fused_kernel.h"
#include "cuda/launch/launcher.h"
#include "cuda/launch/scratch.h"
#include "program/generated/group_norm.h"

namespace onnxopt::cuda {

// Launching does not synchronize, and allocates nothing but the partial results of split slabs, the first time on a
// stream: it is safe under CUDA graph capture. Thread-safe.
class GroupNormCudaKernel final : public FusedKernel {
 public:
  GroupNormCudaKernel(const Kernel& kernel, const Library& library, const OrtKernelInfo* info)
      : FusedKernel(kernel), norm_(kernel.meaning.As<GroupNorm>()), launcher_(kernel, library), allocator_(info) {}

  void Compute(OrtKernelContext* context) const override;

 private:
  const GroupNorm& norm_;
  const Launcher launcher_;
  const Allocator allocator_;
};

}  // namespace onnxopt::cuda
