// How a product with weights of 2, 4 or 8 bits is divided, and where things lie in shared memory.
//
// A step is 16 bytes of each of 16 columns of the weight: two matrices of 8 rows, whose words are codes. A chunk is 8
// steps, as far as a warp copies at a time. The warps of a block take chunks of the same columns in turn.
#pragma once

#include "device/dtypes.cuh"

namespace onnxopt {

// kBits of a code, kGroup codes of a scale. A block has kWarps warps and 16 * kTiles columns of the weight; a warp has
// kStages chunks under way. kinds/gemm/packed_entry_points.py has the same sizes.
template <int kBits_, int kGroup_, int kWarps_, int kTiles_, int kStages_>
struct NBitsTile {
  static constexpr int kBits = kBits_;
  static constexpr int kGroup = kGroup_;
  static constexpr int kWarps = kWarps_;
  static constexpr int kTiles = kTiles_;
  static constexpr int kStages = kStages_;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kColumns = 16 * kTiles;
  static constexpr int kSteps = 8;
  static constexpr int kBytes = 16 * kSteps;                           // of a column in a chunk
  static constexpr int kOfWord = 32 / kBits;                           // codes
  static constexpr int kOfStep = 4 * kOfWord;                          // codes of a column
  static constexpr int kOfChunk = kSteps * kOfStep;                    // codes of a column
  static constexpr int kPart = kGroup < kOfChunk ? kGroup : kOfChunk;  // codes of a group in a chunk
  static constexpr int kParts = kOfChunk / kPart;                      // groups in a chunk
  static constexpr int kHalves = kPart < kOfStep ? 2 : 1;              // groups in a step, at least one
  static constexpr int kStepsOfPart = kHalves == 2 ? 1 : kPart / kOfStep;
  static_assert(kBits == 2 ? kGroup >= 32 : (kBits == 4 || kBits == 8) && kGroup >= 16, "as the host chose");

  static constexpr int kChunkBytes = kColumns * kBytes;
  static constexpr int kSumsPitch = 20;  // floats behind each other of a row of a: banks of a warp's stores differ
  static constexpr int kSumsBytes = kWarps * kTiles * 8 * kSumsPitch * 4;
  static constexpr int kSharedBytes = kWarps * kStages * kChunkBytes + kSumsBytes;

  // Where step `step` of a column lies in its chunk: neighbouring columns' steps fall to other banks.
  __device__ static constexpr int place(int column, int step) { return column * kBytes + (step ^ column % 8) * 16; }
  // The places `steps` behind one of the first two, an even number, and `columns` behind one of the first four of
  // eight, a multiple of 4.
  __device__ static constexpr int steps_behind(int place, int steps) { return place ^ (steps * 16); }
  __device__ static constexpr int columns_behind(int place, int columns) {
    return (columns % 8 != 0 ? place ^ 64 : place) + columns * kBytes;
  }
};

}  // namespace onnxopt
