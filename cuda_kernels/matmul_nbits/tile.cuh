// How a product with weights of 2, 4 or 8 bits is divided. A step of gemm/weight_chunks.cuh is words of codes.
#pragma once

#include "gemm/weight_chunks.cuh"

namespace onnxopt {

// kBits of a code, kGroup codes of a scale. kinds/gemm/packed_entry_points.py has the same sizes.
template <int kBits_, int kGroup_, int kWarps_, int kTiles_, int kStages_>
struct NBitsTile : ChunkTile<kWarps_, kTiles_, kStages_> {
  static constexpr int kSteps = ChunkTile<kWarps_, kTiles_, kStages_>::kSteps;
  static constexpr int kBits = kBits_;
  static constexpr int kGroup = kGroup_;
  static constexpr int kOfWord = 32 / kBits;                           // codes
  static constexpr int kOfStep = 4 * kOfWord;                          // codes of a column
  static constexpr int kOfChunk = kSteps * kOfStep;                    // codes of a column
  static constexpr int kPart = kGroup < kOfChunk ? kGroup : kOfChunk;  // codes of a group in a chunk
  static constexpr int kParts = kOfChunk / kPart;                      // groups in a chunk
  static constexpr int kHalves = kPart < kOfStep ? 2 : 1;              // groups in a step, at least one
  static constexpr int kStepsOfPart = kHalves == 2 ? 1 : kPart / kOfStep;
  static_assert(kBits == 2 ? kGroup >= 32 : (kBits == 4 || kBits == 8) && kGroup >= 16, "as the host chose");
};

}  // namespace onnxopt
