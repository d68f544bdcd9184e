// Attention of many queries on the GPU: which entry point runs a call, and what it is handed.
#pragma once

#include "call/flash_attention.h"
#include "cuda/core_kernel.h"
#include "flash_attention/abi.h"

namespace onnxopt::cuda {

struct FlashAttentionCore
    : Core<FlashAttentionCore, FlashAttention, FlashAttentionCall, CoreLaunch<FlashAttentionParams>> {
  static constexpr bool kAsksResident = true;
  static constexpr bool kHasWarpgroups = true;
  static constexpr int kFirstTf32Major = 8;  // compute capability

  static bool HasFloat32Products(const FlashAttention& attention) { return attention.dtype() == Dtype::kFloat32; }

  // Older GPUs multiply float32 without their matrix units, where ONNX Runtime's products are faster.
  static int FirstMajor(const FlashAttention& attention) { return HasFloat32Products(attention) ? kFirstTf32Major : 0; }

  static std::optional<Launch> LaunchOf(const FlashAttention& attention, const Variant& variant,
                                        const FlashAttentionCall& call, const CoreGpu& gpu, std::uint64_t pass);

  // Whether it has a launch, and the GPU runs it.
  static bool Fits(const FlashAttention& attention, const Variant& variant, const FlashAttentionCall& call,
                   const CoreGpu& gpu);

  // Of those that fit: the shortest tile that holds all keys, else on Hopper the one that is expected to be fastest,
  // else the first that takes any number and keeps the GPU busy.
  static std::size_t Choose(const FlashAttention& attention, const std::vector<Variant>& variants,
                            const FlashAttentionCall& call, const CoreGpu& gpu);

  static CallSize SizeOf(const FlashAttention& attention, const FlashAttentionCall& call);
  static std::string Describe(const FlashAttention& attention, const FlashAttentionCall& call);
};

using FlashAttentionCudaKernel = CoreKernel<FlashAttentionCore>;

}  // namespace onnxopt::cuda
