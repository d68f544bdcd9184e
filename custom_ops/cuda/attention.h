// Runs new tokens' attention on the GPU: one launch reads and writes the cache, and joins what its blocks found, or a
// second one does.
#pragma once

#include "call/attention.h"
#include "call/fused_kernel.h"
#include "cuda/launch/counters.h"
#include "cuda/launch/launcher.h"
#include "cuda/launch/scratch.h"

namespace onnxopt::cuda {

// Launching does not synchronize, and allocates nothing but the blocks' results and their counters, the first time on a
// stream: it is safe under CUDA graph capture. Thread-safe.
class AttentionCudaKernel final : public FusedKernel {
 public:
  AttentionCudaKernel(const Kernel& kernel, const Library& library, const OrtKernelInfo* info)
      : FusedKernel(kernel), launcher_(kernel, library), allocator_(info), counters_(library.driver()) {}

  void Compute(OrtKernelContext* context) const override;

 private:
  void LaunchOneToken(const TokenAttention& attention, const AttentionCall& call, OrtKernelContext* context,
                      Stream stream) const;
  void LaunchMasked(const TokenAttention& attention, const AttentionCall& call, OrtKernelContext* context,
                    Stream stream) const;
  const Variant* Fitting(bool in_tiles) const;
  const Variant& Attending(const TokenAttention& attention, const AttentionCall& call) const;
  // shared: sets of blocks that share the keys of their rows, `splits` of them each. rows: of all. counted: the last
  // block of a set is to join what they found.
  struct Blocks {
    std::uint64_t shared;
    std::uint64_t splits;
    std::uint64_t rows;
    bool counted;
  };
  template <typename Params>
  void Launch(const Variant& attends, const Blocks& blocks, Params* params, Stream stream) const;

  const Launcher launcher_;
  const Allocator allocator_;
  const Counters counters_;
};

}  // namespace onnxopt::cuda
