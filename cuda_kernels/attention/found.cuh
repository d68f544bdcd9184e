// What a block does with what it found: it is the result where no other block has keys of its rows, else a part of it,
// which the last of these blocks joins with the others' parts, or another launch.
#pragma once

#include "attention/cache.cuh"
#include "attention/join_parts.cuh"
#include "device/last_block.cuh"
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

// After all threads of the block have put what they found.
template <typename T, int kWidth, int kRows, int kThreads, typename Cache>
__device__ inline void join_if_last(const Cache& cache) {
  if (cache.splits() == 1 || cache.ended() == nullptr || !is_last_block(cache.ended(), cache.splits())) return;
  JoinParts<kWidth, kRows, kThreads>{cache.parts(), cache.splits(), cache.part_step()}.join(
      [&](unsigned row, unsigned column, const Vector<float, 2>& x) { put_result<T>(cache, row, column, x); });
}

}  // namespace onnxopt
