// Joins what the blocks that share a row's keys found.
#pragma once

#include "attention/cache.cuh"
#include "device/ptx.cuh"

namespace onnxopt {

// A block joins the parts of one row: parts[s * step] of every split s has kWidth sums of weighted values, then the
// largest score and the sum of weights. store(i, x) takes element i of the result.
//
// Threads of several groups take some of the splits each, and all of a thread's loads are asked for before any is used:
// this kernel waits for memory alone.
template <int kWidth, int kThreads, typename Store>
__device__ inline void join_parts(const float* parts, unsigned splits, unsigned step, Store store) {
  constexpr float kLog2E = 1.4426950408889634f;
  constexpr int kGroups = kThreads >= kWidth ? kThreads / kWidth : 1;
  constexpr int kAtOnce = 8;
  struct Found {
    float top;  // the largest score
    float sum;
    float value;

    __device__ void add(float score, float weights, float weighted) {
      const float best = ::fmaxf(top, score);
      const float old = ptx::exp2((top - best) * kLog2E);
      const float factor = ptx::exp2((score - best) * kLog2E);
      sum = sum * old + factor * weights;
      value = value * old + factor * weighted;
      top = best;
    }
  };
  __shared__ float found[3][kGroups * kWidth];
  for (unsigned i = threadIdx.x; i < kGroups * kWidth; i += kThreads) {
    const unsigned column = i % kWidth;
    Found of_thread{kNoScore, 0.0f, 0.0f};
    for (unsigned first = i / kWidth; first < splits; first += kGroups * kAtOnce) {
      Found loaded[kAtOnce];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const unsigned s = first + u * kGroups;
        const float* const part = parts + static_cast<uint64_t>(min(s, splits - 1)) * step;
        const bool exists = s < splits;
        loaded[u] = {exists ? part[kWidth] : kNoScore, exists ? part[kWidth + 1] : 0.0f, exists ? part[column] : 0.0f};
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) of_thread.add(loaded[u].top, loaded[u].sum, loaded[u].value);
    }
    found[0][i] = of_thread.top;
    found[1][i] = of_thread.sum;
    found[2][i] = of_thread.value;
  }
  __syncthreads();
  for (unsigned column = threadIdx.x; column < kWidth; column += kThreads) {
    Found all{kNoScore, 0.0f, 0.0f};
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const unsigned i = g * kWidth + column;
      all.add(found[0][i], found[1][i], found[2][i]);
    }
    store(column, all.value / all.sum);
  }
}

}  // namespace onnxopt
