// Runs new tokens' attention on the GPU: one launch reads and writes the cache, one joins what its blocks found.
#pragma once

#include "call/attention.h"
#include "call/fused_kernel.h"
#include "cuda/launch/launcher.h"
#include "cuda/launch/scratch.h"

namespace onnxopt::cuda {

// Launching does not synchronize, and allocates nothing but the blocks' results, the first time on a stream: it is safe
// under CUDA graph capture. Thread-safe.
class TokenAttentionCudaKernel final : public FusedKernel {
 public:
  TokenAttentionCudaKernel(const Kernel& kernel, const Library& library, const OrtKernelInfo* info)
      : FusedKernel(kernel), launcher_(kernel, library), allocator_(info) {}

  void Compute(OrtKernelContext* context) const override;

 private:
  void LaunchOneToken(const TokenAttention& attention, const AttentionCall& call, OrtKernelContext* context,
                      Stream stream) const;
  void LaunchMasked(const TokenAttention& attention, const AttentionCall& call, OrtKernelContext* context,
                    Stream stream) const;
  const Variant* Fitting(bool in_tiles) const;
  const Variant& Attending(const TokenAttention& attention, const AttentionCall& call) const;
  void Attend(const Variant& variant, std::uint64_t blocks, unsigned char* params, Stream stream) const;

  const Launcher launcher_;
  const Allocator allocator_;
};

}  // namespace onnxopt::cuda
