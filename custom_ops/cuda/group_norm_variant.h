// Which entry point of a group norm runs a call, and what it is handed.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "call/group_norm.h"
#include "group_norm/abi.h"
#include "kernel_file/kernel.h"

namespace onnxopt::cuda {

struct GroupNormGpu {
  int major;  // of the compute capability
  unsigned multiprocessors;
};

// params: all but scratch, of which `scratch` bytes are needed.
struct GroupNormLaunch {
  GroupNormParams params;
  unsigned blocks;
  std::size_t scratch;
};

// The launch of an entry point for a call that is not empty, nothing where it does not fit: sizes, addresses that its
// vectors cannot have, or a GPU that does not run it. Both launches of a split variant have the same.
std::optional<GroupNormLaunch> LaunchOf(const GroupNorm& norm, const Variant& variant, const GroupNormCall& call,
                                        const GroupNormGpu& gpu);

// The entry point to run, the first launch of a split one; variants.size() where none fits.
std::size_t ChooseGroupNorm(const GroupNorm& norm, const std::vector<Variant>& variants, const GroupNormCall& call,
                            const GroupNormGpu& gpu);

}  // namespace onnxopt::cuda
