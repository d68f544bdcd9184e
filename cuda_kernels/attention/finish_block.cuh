// What a block does with what it found: it is the result where no other block has keys of its rows, else a part of it,
// which the last of these blocks joins with the others' parts, or another launch.
#pragma once

#include "attention/cache.cuh"
#include "attention/join_parts.cuh"
#include "device/last_block.cuh"
#include "device/ptx.cuh"
#include "device/vector.cuh"

namespace onnxopt {

// Two elements of a row's result.
template <typename T, typename Cache>
__device__ inline void put_result(const Cache& cache, unsigned row, unsigned column, const Vector<float, 2>& x) {
  T* const output = cache.output(row);
  if (output == nullptr) return;
  store_vector<T, 2>(output + column, {Narrow<T>::from(x.at[0]), Narrow<T>::from(x.at[1])});
}

// Two sums of weighted values, of weights exp(score - top) whose sum is `sum`.
template <typename T, int kWidth, typename Cache>
__device__ inline void put_found(const Cache& cache, unsigned row, unsigned column, const Vector<float, 2>& x,
                                 float top, float sum) {
  if (cache.splits() == 1) {
    put_result<T>(cache, row, column, {ptx::div(x.at[0], sum), ptx::div(x.at[1], sum)});
    return;
  }
  float* const part = part_of<kWidth>(cache, row);
  store_vector(part + column, x);
  if (column == 0) store_vector<float, 2>(part + kWidth, {top, sum});
}

// Joins what the warps of a block found, two elements of a row a thread. Block::found_of(warp, row): where a warp has
// put kWidth sums, the largest score, and the sum of weights.
template <typename Block, typename T, int kWidth, int kRows, int kThreads, typename Cache>
__device__ inline void join_warps(const Cache& cache) {
  constexpr float kLog2E = 1.4426950408889634f;
  constexpr int kWarps = kThreads / 32;
  for (unsigned i = threadIdx.x; i < kRows * kWidth / 2; i += kThreads) {
    const unsigned row = i / (kWidth / 2);
    const unsigned column = i % (kWidth / 2) * 2;
    Vector<float, 2> weights[kWarps];  // the largest score, the sum of weights
    float top = kNoScore;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      weights[w] = load_vector<float, 2>(Block::found_of(w, row) + kWidth);
      top = ::fmaxf(top, weights[w].at[0]);
    }
    float sum = 0.0f;
    Vector<float, 2> x = {};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float factor = ptx::exp2((weights[w].at[0] - top) * kLog2E);
      const auto of_warp = load_vector<float, 2>(Block::found_of(w, row) + column);
      sum += factor * weights[w].at[1];
      x.at[0] += factor * of_warp.at[0];
      x.at[1] += factor * of_warp.at[1];
    }
    put_found<T, kWidth>(cache, row, column, x, top, sum);
  }
}

// After all threads of the block have put what they found.
template <typename T, int kWidth, int kRows, int kThreads, typename Cache>
__device__ inline void join_if_last(const Cache& cache) {
  if (cache.splits() == 1 || cache.ended() == nullptr || !is_last_block(cache.ended(), cache.splits())) return;
  JoinParts<kWidth, kRows, kThreads>{cache.parts(), cache.splits(), cache.part_step()}.join(
      [&](unsigned row, unsigned column, const Vector<float, 2>& x) { put_result<T>(cache, row, column, x); });
}

}  // namespace onnxopt
