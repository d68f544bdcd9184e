// A product of few rows, as one token makes of every layer: as fast as the weights come from memory.
//
// b lies transposed, so that a column of the product is a row of memory. A warp takes kColumns of them: each lane has
// kUnroll vectors of every column in flight, multiplies them by those of all rows of a, and the lanes' sums are added
// at the end. Weights are read once and kept in no cache near the multiprocessor; a is read again by every warp, from
// there. Sums are float32.
#pragma once

#include "dtypes.cuh"
#include "few_rows_abi.h"
#include "reduce.cuh"
#include "scalar.cuh"
#include "vector.cuh"

namespace onnxopt {

enum class Activation { kNone, kRelu, kGeluTanh };

template <Activation kActivation>
__device__ inline float activate(float x) {
  if constexpr (kActivation == Activation::kRelu) return x < 0.0f ? 0.0f : x;  // keeps NaN
  if constexpr (kActivation == Activation::kGeluTanh) {
    return 0.5f * x * (1.0f + tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
  }
  return x;
}

// Of what is read once: no place in the multiprocessor's cache for it.
template <typename T, int kWidth>
__device__ inline Vector<T, kWidth> load_once(const T* data) {
#if __CUDA_ARCH__ >= 700
  if constexpr (sizeof(Vector<T, kWidth>) == 16) {
    struct alignas(16) Words {
      unsigned int at[4];
    } words;
    asm volatile("ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.at[0]), "=r"(words.at[1]), "=r"(words.at[2]), "=r"(words.at[3])
                 : "l"(data));
    return *reinterpret_cast<const Vector<T, kWidth>*>(&words);
  }
#endif
  return load_vector<T, kWidth>(data);
}

// The host may launch this kernel before the one ahead of it has ended, and the next one before this has.
__device__ inline void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ inline void wait_for_end_of_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

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
  wait_for_end_of_previous();
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
      static_cast<T*>(params.output)[at] = Narrow<T>::from(activate<kActivation>(y));
    }
  }
}

}  // namespace onnxopt
