// The mean and sum of squared deviations of some numbers, and how those of several sets become one. No sum of squares
// is taken of anything but deviations from a mean: nothing cancels where the mean is large.
#pragma once

#include "device/ptx.cuh"
#include "device/scalar.cuh"
#include "device/shuffle.cuh"

namespace onnxopt {

struct Moments {
  float mean;
  float squares;  // sum of squared deviations from the mean
};

// Adds the moments of `count` more numbers; weight: their share of all there are with them.
__device__ inline void merge(Moments& a, const Moments& b, float count, float weight) {
  const float apart = b.mean - a.mean;
  a.mean += apart * weight;
  a.squares += b.squares + apart * apart * (count * (1.0f - weight));
}

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

}  // namespace onnxopt
