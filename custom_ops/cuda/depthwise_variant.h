// Which entry point of a depthwise kernel runs a call, and what it is handed.
#pragma once

#include <optional>
#include <vector>

#include "call/depthwise.h"
#include "depthwise/abi.h"
#include "kernel_file/kernel.h"

namespace onnxopt::cuda {

// major: of the compute capability. shared: bytes of shared memory that a block can have.
struct DepthwiseGpu {
  int major;
  unsigned shared;
  unsigned multiprocessors;
};

// tiles: of an image, each of which has sums of its own where the entry point sums its results.
struct DepthwiseLaunch {
  DepthwiseParams params;
  unsigned blocks;
  std::uint64_t tiles;
};

// The launch of an entry point for a call that is not empty, nothing where it does not fit: sizes and addresses that
// its indices or vectors cannot have, or a GPU that does not run it.
std::optional<DepthwiseLaunch> LaunchOf(const Depthwise& depthwise, const Variant& variant, const DepthwiseCall& call,
                                        const DepthwiseGpu& gpu);

// The first that fits and is preferred for the result's width and the number of threads, else the first that fits, else
// variants.size().
std::size_t ChooseDepthwise(const Depthwise& depthwise, const std::vector<Variant>& variants, const DepthwiseCall& call,
                            const DepthwiseGpu& gpu);

}  // namespace onnxopt::cuda
