// Depthwise convolutions on the GPU: which entry point runs a call, and what it is handed.
#pragma once

#include "cuda/core_kernel.h"
#include "depthwise/abi.h"
#include "program/generated/depthwise.h"

namespace onnxopt::cuda {

// tiles: of an image, each of which has sums of its own where the entry point sums its results.
struct DepthwiseLaunch : CoreLaunch<DepthwiseParams> {
  std::uint64_t tiles = 0;
};

struct DepthwiseCore : Core<DepthwiseCore, Depthwise, CoreCall, DepthwiseLaunch> {
  // Nothing for sizes and addresses that an entry point's indices or vectors cannot have, and on a GPU that does not
  // run it.
  static std::optional<DepthwiseLaunch> LaunchOf(const Depthwise& depthwise, const Variant& variant,
                                                 const CoreCall& call, const CoreGpu& gpu, std::uint64_t pass);

  // The first that fits and is preferred for the result's width and the number of threads, else the first that fits.
  static std::size_t Choose(const Depthwise& depthwise, const std::vector<Variant>& variants, const CoreCall& call,
                            const CoreGpu& gpu);
};

using DepthwiseCudaKernel = CoreKernel<DepthwiseCore>;

}  // namespace onnxopt::cuda
