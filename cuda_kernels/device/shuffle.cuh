// Exchanging values between the lanes of a warp.
#pragma once

namespace onnxopt {

// A template, so that a function is found where it is used and NVRTC compiles none that is not.
template <typename T>
__device__ inline T shuffle_xor(T x, int mask) {
  if constexpr (sizeof(T) < 4) {
    return static_cast<T>(__shfl_xor_sync(0xffffffffu, static_cast<int>(x), mask));
  } else {
    return __shfl_xor_sync(0xffffffffu, x, mask);
  }
}

// What a lane has.
template <typename T>
__device__ inline T shuffle_from(T x, unsigned lane) {
  return __shfl_sync(0xffffffffu, x, static_cast<int>(lane), 32);
}

// Whether any lane says so.
__device__ inline bool any_of_warp(bool of_lane) { return __any_sync(0xffffffffu, of_lane) != 0; }

}  // namespace onnxopt
