// A product of few rows, as one token makes of every layer: as fast as the weights come from memory.
//
// b lies transposed, so that a column of the product is a row of memory. A warp takes kColumns of them: each lane has
// kUnroll vectors of every column in flight, multiplies them by those of all rows of a, and the lanes' sums are added
// at the end. Weights are read once and kept in no cache near the multiprocessor; a is read again by every warp, from
// there. Sums are float32.
#pragma once

#include "device/dtypes.cuh"
#include "device/early_launch.cuh"
#include "device/reduce.cuh"
#include "device/scalar.cuh"
#include "device/vector.cuh"
#include "gemm/activation.cuh"
#include "gemm/few_rows_abi.h"

namespace onnxopt {

// kRows: at least params.rows.
template <typename T, Activation kActivation, int kRows, int kColumns, int kUnroll, int kThreads>
__device__ inline void few_rows(const FewRowsParams& params) {
  constexpr int kWidth = 16 / sizeof(T);
  const unsigned lane = threadIdx.x % 32;
  const unsigned first = (blockIdx.x * (kThreads / 32) + threadIdx.x / 32) * kColumns;
  const unsigned vectors = params.depth / kWidth;
  const T* const a = static_cast<const T*>(params.a);
  const T* column[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {  // behind the last one: that one again, and nothing is stored
    const unsigned at = min(first + c, params.columns - 1);
    column[c] = static_cast<const T*>(params.b) + static_cast<uint64_t>(at) * params.depth;
  }
  Vector<T, kWidth> b[kUnroll][kColumns];
  const auto load = [&](unsigned begin) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const unsigned at = begin + 32 * u + lane;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        if (at < vectors) b[u][c] = load_once<T, kWidth>(column[c] + at * kWidth);
      }
    }
  };
  float sums[kRows][kColumns] = {};
  let_next_begin();
  if (params.b_is_constant) load(0);
  wait_for_previous();
  if (!params.b_is_constant) load(0);
  for (unsigned begin = 0; begin < vectors; begin += 32 * kUnroll) {
    if (begin > 0) load(begin);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const unsigned at = begin + 32 * u + lane;
      if (at >= vectors) break;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r >= params.rows) break;
        const auto x = load_vector<T, kWidth>(a + static_cast<uint64_t>(r) * params.depth + at * kWidth);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          const float factor = widen(x.at[j]);
#pragma unroll
          for (int c = 0; c < kColumns; ++c) sums[r][c] += factor * widen(b[u][c].at[j]);
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int mask = 16; mask > 0; mask /= 2) sums[r][c] += shuffle_xor(sums[r][c], mask);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (lane != (r * kColumns + c) % 32 || r >= params.rows || first + c >= params.columns) continue;
      const uint64_t at = static_cast<uint64_t>(r) * params.columns + first + c;
      float y = params.alpha * sums[r][c];
      if (params.bias != nullptr) y += widen(static_cast<const T*>(params.bias)[first + c]);
      if (params.residual != nullptr) y += params.beta * widen(static_cast<const T*>(params.residual)[at]);
      static_cast<T*>(params.output)[at] = Narrow<T>::from(activate<kActivation, sizeof(T) == 4>(y));
    }
  }
}

}  // namespace onnxopt
