// Group norms on the GPU: which entry point runs a call, and what it is handed.
#pragma once

#include "cuda/core_kernel.h"
#include "group_norm/abi.h"
#include "program/generated/group_norm.h"

namespace onnxopt::cuda {

struct GroupNormCore : Core<GroupNormCore, GroupNorm, CoreCall, CoreLaunch<GroupNormParams>> {
  // Nothing for sizes, addresses that an entry point's vectors cannot have, and a GPU that does not run it. Both passes
  // of a split entry point have the same parameters.
  static std::optional<Launch> LaunchOf(const GroupNorm& norm, const Variant& variant, const CoreCall& call,
                                        const CoreGpu& gpu, std::uint64_t pass);

  // Whether an entry point is the first that a call launches, and fits.
  static bool Fits(const GroupNorm& norm, const Variant& variant, const CoreCall& call, const CoreGpu& gpu);

  static std::size_t Choose(const GroupNorm& norm, const std::vector<Variant>& variants, const CoreCall& call,
                            const CoreGpu& gpu);

  static CallSize SizeOf(const GroupNorm& norm, const CoreCall& call);
  static void SetScratch(void* memory, GroupNormParams* params) { params->scratch = static_cast<float*>(memory); }
};

using GroupNormCudaKernel = CoreKernel<GroupNormCore>;

}  // namespace onnxopt::cuda
