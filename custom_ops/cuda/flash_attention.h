// Runs attention of many queries on the GPU.
#pragma once

#include "call/fused_kernel.h"
#include "cuda/flash_attention_variant.h"
#include "cuda/launch/launcher.h"
#include "program/generated/flash_attention.h"

namespace onnxopt::cuda {

// Launching neither synchronizes nor allocates: it is safe under CUDA graph capture. Thread-safe.
class FlashAttentionCudaKernel final : public FusedKernel {
 public:
  FlashAttentionCudaKernel(const Kernel& kernel, const Library& library)
      : FusedKernel(kernel),
        attention_(kernel.meaning.As<FlashAttention>()),
        launcher_(kernel, library),
        for_hopper_(library.HasCodeForAlone(kHopper)) {}

  void Compute(OrtKernelContext* context) const override;

 private:
  const FlashAttention& attention_;
  const Launcher launcher_;
  const bool for_hopper_;  // whether products of warpgroups were compiled
};

}  // namespace onnxopt::cuda
