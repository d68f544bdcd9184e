// The mean and sum of squared deviations of some numbers, and what merging those of threads takes.
#pragma once

#include "device/ptx.cuh"
#include "device/scalar.cuh"
#include "device/shuffle.cuh"

namespace onnxopt {

struct Moments {
  float mean;
  float squares;  // sum of squared deviations from the mean
};

__device__ inline float sum_of_lanes(float x) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  return x;
}

// 1 / x of a normal number, to half a unit in the last place or little more, without a branch.
__device__ inline float inverse(float x) {
  const float y = ptx::reciprocal(x);
  return ::fmaf(::fmaf(-x, y, 1.0f), y, y);
}

__device__ constexpr int greatest_divisor(int a, int b) { return b == 0 ? a : greatest_divisor(b, a % b); }

// Lanes of a warp, a power of 2, that go through rows while the others go through columns, so that it takes few turns.
__device__ constexpr int lanes_of_rows(int rows, int columns) {
  int best = 32, fewest = 0;
  for (int lanes = 32; lanes > 0; lanes /= 2) {
    const int turns = ((rows - 1) / lanes + 1) * ((columns - 1) / (32 / lanes) + 1);
    if (fewest == 0 || turns < fewest) best = lanes, fewest = turns;
  }
  return best;
}

// The moments of a block's threads lie at [run of a thread][row][column]: how many places a row has. An odd number has
// neither rows nor columns share banks of shared memory, where that is no more than blocks have.
__device__ constexpr int stride_of_entries(int rows, int columns) {
  return rows * (columns | 1) * static_cast<int>(sizeof(Moments)) <= 40 << 10 ? columns | 1 : columns;
}

// Of the moments that kCount runs from `first` on have in all rows, lane by lane: use(moments, pixels that they are
// of). A thread has kRuns runs; rows take turns with a block's pixels.
template <int kCount, int kRuns, int kRows, int kStride, typename Use>
__device__ inline void for_each_entry(const Moments* entries, int first, int pixels, const Use& use) {
  constexpr int kLanes = lanes_of_rows(kRows, kCount);  // that go through rows; the others through runs
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int all = pixels / kRows;
#pragma unroll
  for (int q = lane / kLanes; q < kCount; q += 32 / kLanes) {
    const Moments* const of = entries + (first + q) % kRuns * kRows * kStride + (first + q) / kRuns;
#pragma unroll
    for (int k = lane % kLanes; k < kRows; k += kLanes) {
      use(of[k * kStride], static_cast<float>(k < pixels - all * kRows ? all + 1 : all));
    }
  }
}

}  // namespace onnxopt
