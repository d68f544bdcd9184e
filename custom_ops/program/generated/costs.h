#pragma once

// Written by custom_ops/generate.py from onnxopt/costs/*.json, which say where each number comes from.

#include <cstddef>
#include <cstdint>

namespace onnxopt::costs::depthwise {

// blocks of a multiprocessor: into which tiles are divided by channels where there are fewer
constexpr std::uint64_t kExpandedBlocks = 8;

}  // namespace onnxopt::costs::depthwise

namespace onnxopt::costs::group_norm {

// blocks of a multiprocessor: of the first of two launches
constexpr std::uint64_t kBlocksOfSplit = 3;
// vectors: of a thread of such a block, at least
constexpr std::uint64_t kVectorsOfSplit = 4;
// twentieths of the multiprocessors: with a block, below which a larger cluster is chosen
constexpr std::uint64_t kIdleTwentieths = 9;

}  // namespace onnxopt::costs::group_norm

namespace onnxopt::costs::pool {

// threads of a multiprocessor: below which narrower vectors are used where threads share nothing
constexpr std::uint64_t kFewThreads = 256;
// bytes: of the narrowest vector that is used then
constexpr std::size_t kLeastAccess = 4;

}  // namespace onnxopt::costs::pool
