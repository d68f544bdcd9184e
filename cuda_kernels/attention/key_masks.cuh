// The masks of some rows and keys, which are asked for together, before anything waits for one of them.
#pragma once

#include "attention/cache.cuh"
#include "device/scalar.cuh"

namespace onnxopt {

// Finite masks of less than this hide a key. As sums they would all be below kNoScore, and a row that hides all of its
// keys so, as those of padding do, would be not a number instead of a mean.
constexpr float kLeastMask = -1e29f;

template <typename T>
__device__ inline float mask_of(T stored) {
  const float mask = widen(stored);
  return mask < kLeastMask && mask >= -3.4028235e38f ? kLeastMask : mask;
}

// Where there is no mask.
template <typename T, int kRows, int kKeys, bool kMasked>
struct KeyMasks {
  struct Rows {};

  template <typename Cache>
  __device__ static Rows rows_of(const Cache&, int, int, int) {
    return {};
  }
  __device__ void load(const Rows&, unsigned, unsigned, unsigned) {}
  __device__ static float at(int, int) { return 0.0f; }
};

template <typename T, int kRows, int kKeys>
struct KeyMasks<T, kRows, kKeys, true> {
  struct Rows {
    const T* at[kRows];
  };
  T masks[kRows][kKeys];

  // Of rows `step` apart from `base` on. Those behind the last are the last.
  template <typename Cache>
  __device__ static Rows rows_of(const Cache& cache, int base, int step, int last) {
    Rows rows;
#pragma unroll
    for (int r = 0; r < kRows; ++r) rows.at[r] = cache.mask_row(min(base + r * step, last));
    return rows;
  }

  // Of keys `step` apart from `first` on. Those from `end` on, which count nothing, are the last.
  __device__ void load(const Rows& rows, unsigned first, unsigned step, unsigned end) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int u = 0; u < kKeys; ++u) masks[r][u] = rows.at[r][min(first + u * step, end - 1)];
    }
  }

  __device__ float at(int row, int key) const { return mask_of(masks[row][key]); }
};

}  // namespace onnxopt
