// Running totals over the lanes of a warp and the warps of a block. Every sum is made in one order, so that the same
// launch gives the same bits again.
#pragma once

#include "device/scalar.cuh"

namespace onnxopt {

constexpr int kWarpLanes = 32;

// Templates, so that a function is found where it is used and NVRTC compiles none that is not.
template <int kLanes, typename T>
__device__ inline T from_lane(T x, int lane) {
  return __shfl_sync(0xffffffffu, x, lane, kLanes);
}

template <int kLanes, typename T>
__device__ inline T from_below(T x, int distance) {
  return __shfl_up_sync(0xffffffffu, x, distance, kLanes);
}

// The sum of this lane's x and those of the lanes below, among kLanes of a warp.
template <int kLanes, typename T>
__device__ inline T scan_lanes(T x) {
  const int lane = threadIdx.x % kLanes;
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
    const T below = from_below<kLanes>(x, distance);
    if (lane >= distance) x = add(below, x);
  }
  return x;
}

// Of what scan_lanes gave: the sum of the lanes below alone.
template <int kLanes, typename T>
__device__ inline T without_own(T scanned) {
  const T below = from_below<kLanes>(scanned, 1);
  return threadIdx.x % kLanes == 0 ? T(0) : below;
}

// Running totals of kCount values, of which lane l has kCount / 32 from its first one on: `before[s]` becomes the sum
// of all values before value s of this lane. Returns the sum of all.
template <int kCount, typename T>
__device__ inline T scan_shares(const T* values, T (&before)[(kCount + kWarpLanes - 1) / kWarpLanes]) {
  constexpr int kShare = (kCount + kWarpLanes - 1) / kWarpLanes;
  const int first = threadIdx.x % kWarpLanes * kShare;
  T sum = T(0);
#pragma unroll
  for (int s = 0; s < kShare; ++s) {
    before[s] = sum;
    if (first + s < kCount) sum = add(sum, values[first + s]);
  }
  const T scanned = scan_lanes<kWarpLanes>(sum);
  const T below = without_own<kWarpLanes>(scanned);
#pragma unroll
  for (int s = 0; s < kShare; ++s) before[s] = add(below, before[s]);
  return from_lane<kWarpLanes>(scanned, kWarpLanes - 1);
}

// Running totals along a row that kLanes threads of a block share, each with kVectors values: value v of lane l is the
// row's value v * kLanes + l. Values become the sums of `carry` and all that lie before them, and `carry` the sum with
// all of them. Every thread of the block takes part. turn: counts the calls, as places in shared memory alternate.
template <int kVectors, int kLanes, int kThreads, typename T>
__device__ inline void scan_values(T (&values)[kVectors], T& carry, int turn) {
  constexpr int kPart = kLanes < kWarpLanes ? kLanes : kWarpLanes;
  T scanned[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) scanned[v] = scan_lanes<kPart>(values[v]);
  if constexpr (kLanes <= kWarpLanes) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      values[v] = add(carry, without_own<kPart>(scanned[v]));
      carry = add(carry, from_lane<kPart>(scanned[v], kPart - 1));
    }
  } else {
    constexpr int kWarps = kLanes / kWarpLanes;  // of a row
    constexpr int kCount = kWarps * kVectors;
    constexpr int kShare = (kCount + kWarpLanes - 1) / kWarpLanes;
    __shared__ T of_warps[2][kThreads / kWarpLanes * kVectors];
    T* const parts = of_warps[turn & 1] + threadIdx.x / kLanes * kCount;
    const int warp = threadIdx.x % kLanes / kWarpLanes;
    if (threadIdx.x % kWarpLanes == kWarpLanes - 1) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) parts[v * kWarps + warp] = scanned[v];
    }
    __syncthreads();
    T before[kShare];
    const T sum = scan_shares<kCount>(parts, before);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int number = v * kWarps + warp;
      T offset = T(0);
#pragma unroll
      for (int s = 0; s < kShare; ++s) {
        const T found = from_lane<kWarpLanes>(before[s], number / kShare);
        if (number % kShare == s) offset = found;
      }
      values[v] = add(add(carry, offset), without_own<kWarpLanes>(scanned[v]));
    }
    carry = add(carry, sum);
  }
}

}  // namespace onnxopt
