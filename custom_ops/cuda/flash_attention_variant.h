// What an entry point of an attention of many queries is handed for a call.
#pragma once

#include <optional>
#include <vector>

#include "call/flash_attention.h"
#include "flash_attention/abi.h"
#include "kernel_file/kernel.h"

namespace onnxopt::cuda {

constexpr unsigned kHopper = 90;  // its architecture

// What the choice of an entry point depends on. warpgroups: whether it runs those of warpgroups. shared: bytes of
// shared memory that a block can have.
struct FlashGpu {
  bool warpgroups;
  unsigned multiprocessors;
  unsigned shared;
};

struct FlashAttentionLaunch {
  FlashAttentionParams params;
  unsigned blocks;
};

// The launch of an entry point for a call that is not empty, nothing where it does not fit. resident: blocks that the
// GPU runs at once.
std::optional<FlashAttentionLaunch> LaunchOf(const FlashAttention& attention, const Variant& variant,
                                             const FlashAttentionCall& call, unsigned resident);

// Whether the GPU can run an entry point for a call that is not empty.
bool FitsFlashAttention(const FlashAttention& attention, const Variant& variant, const FlashAttentionCall& call,
                        const FlashGpu& gpu);

// The entry point that the rule takes of those that fit: the shortest tile that holds all keys, else on Hopper the one
// that is expected to be fastest, else the first that takes any number and keeps the GPU busy. variants.size() where
// there is none.
std::size_t ChooseFlashAttention(const FlashAttention& attention, const std::vector<Variant>& variants,
                                 const FlashAttentionCall& call, const FlashGpu& gpu);

}  // namespace onnxopt::cuda
