// The two products of a squeeze-excite, each with a program behind it: y = g(f(mean A^T + a) B^T + b).
//
// A block takes kRows rows of means (samples), so that it reads the weights once for all of them. For the first product
// a warp takes rows of A, whose elements its lanes read side by side; for the second, a few lanes take a row of B. What
// lies between is float32 in shared memory, never rounded to the storage dtype.
//
// Op is generated: Op::Stored, the sizes kChannels, kHidden and kOutputs, kSums (whether the means come as sums of
// tiles), First::apply(x) and Second::apply(x).
#pragma once

#include "device/approximate.cuh"
#include "device/dtypes.cuh"
#include "device/early_launch.cuh"
#include "device/scalar.cuh"
#include "device/shuffle.cuh"
#include "device/vector.cuh"
#include "squeeze_excite/abi.h"

namespace onnxopt {

template <typename Op, int kRows, int kThreads>
struct SqueezeExcite {
  using T = typename Op::Stored;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kLine = 128;        // bytes
  static constexpr int kMostInFlight = 4;  // rows of A of a warp, and vectors of a lane in a row of B

  // The most elements of one access to rows of so many.
  static constexpr int width_of(int row) {
    int width = 16 / sizeof(T);
    while (row % width != 0) width /= 2;
    return width;
  }

  // Lanes that share a row of so many vectors.
  static constexpr int lanes_of(int vectors) {
    int lanes = 1;
    while (lanes < 32 && lanes * kMostInFlight < vectors) lanes *= 2;
    return lanes;
  }

  static constexpr int kTogether =
      (Op::kHidden - 1) / kWarps + 1 < kMostInFlight ? (Op::kHidden - 1) / kWarps + 1 : kMostInFlight;
  static constexpr int kSumWidth = Op::kChannels % 4 == 0 ? 4 : 1;
  static constexpr int kSumVectors = Op::kChannels / kSumWidth;
  static constexpr int kSumColumns = kSumVectors < kThreads ? kSumVectors : kThreads;  // that a block adds at once
  static constexpr int kSumLanes = kThreads / kSumColumns;                             // threads that share a column

  struct Rows {
    alignas(16) float mean[kRows][Op::kChannels];
    alignas(16) float hidden[kRows][Op::kHidden];
  };

  // Asks the L2 cache for weights while the kernel ahead is still running. No kernel writes them.
  __device__ static void prefetch(const SqueezeExciteParams& p) {
#ifdef __CUDACC__
    constexpr int kBytes[2] = {Op::kHidden * Op::kChannels * static_cast<int>(sizeof(T)),
                               Op::kOutputs * Op::kHidden * static_cast<int>(sizeof(T))};
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      const char* const data = static_cast<const char*>(p.weight[w]);
      for (int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kLine; at < kBytes[w];
           at += static_cast<int64_t>(gridDim.x) * kThreads * kLine) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(data + at));
      }
    }
#endif
  }

  // As the graph stores it.
  __device__ static float rounded(float x) { return widen(Narrow<T>::from(x)); }

  __device__ static void read_means(const SqueezeExciteParams& p, int first, Rows& rows) {
    const T* const mean = static_cast<const T*>(p.mean) + static_cast<int64_t>(first) * Op::kChannels;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      for (int c = threadIdx.x; c < Op::kChannels; c += kThreads) {
        rows.mean[r][c] = first + r < p.rows ? widen(mean[static_cast<int64_t>(r) * Op::kChannels + c]) : 0.0f;
      }
    }
    __syncthreads();
  }

  // The totals of some tiles, in an order that depends on their number alone: store(channel, total) keeps them.
  template <typename Store>
  __device__ static void add_tiles(const float* sums, int tiles, const Store& store) {
    __shared__ Vector<float, kSumWidth> parts[kThreads];
    const int column = threadIdx.x % kSumColumns;
    const int lane = threadIdx.x / kSumColumns;
#pragma unroll 1
    for (int begin = 0; begin < kSumVectors; begin += kSumColumns) {
      const int at = (begin + column) * kSumWidth;
      const bool inside = begin + column < kSumVectors;
      Vector<float, kSumWidth> sum{};
      const auto add = [&sum](const Vector<float, kSumWidth>& x) {
#pragma unroll
        for (int j = 0; j < kSumWidth; ++j) sum.at[j] += x.at[j];
      };
      if (inside && lane < kSumLanes) {
#pragma unroll 8
        for (int t = lane; t < tiles; t += kSumLanes) {
          add(load_vector<float, kSumWidth>(sums + static_cast<int64_t>(t) * Op::kChannels + at));
        }
      }
      parts[threadIdx.x] = sum;
      __syncthreads();
      if (inside && lane == 0) {
#pragma unroll 4
        for (int other = 1; other < kSumLanes; ++other) add(parts[other * kSumColumns + column]);
#pragma unroll
        for (int j = 0; j < kSumWidth; ++j) store(at + j, sum.at[j]);
      }
      __syncthreads();
    }
  }

  __device__ static void read_sums(const SqueezeExciteParams& p, int first, Rows& rows) {
#pragma unroll 1
    for (int r = 0; r < kRows; ++r) {
      const bool exists = first + r < p.rows;
      const float* const sums = p.sums + static_cast<int64_t>(first + r) * p.tiles * Op::kChannels;
      add_tiles(sums, exists ? p.tiles : 0,
                [&](int channel, float total) { rows.mean[r][channel] = rounded(total / p.pixels); });
    }
  }

  // A vector of weights by the same elements of all rows.
  template <int kWidth, int kLength>
  __device__ static void add_products(const Vector<T, kWidth>& weight, const float (&x)[kRows][kLength], int at,
                                      float (&sum)[kRows]) {
    constexpr int kStep = kWidth < 4 ? kWidth : 4;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int j = 0; j < kWidth; j += kStep) {
        const auto part = load_vector<float, kStep>(x[r] + at + j);
#pragma unroll
        for (int k = 0; k < kStep; ++k) sum[r] = ::fmaf(widen(weight.at[j + k]), part.at[k], sum[r]);
      }
    }
  }

  __device__ static float bias(const void* data, int at) {
    return data == nullptr ? 0.0f : widen(static_cast<const T*>(data)[at]);
  }

  __device__ static void squeeze(const SqueezeExciteParams& p, Rows& rows) {
    constexpr int kWidth = width_of(Op::kChannels);
    constexpr int kVectors = Op::kChannels / kWidth;
    const int lane = threadIdx.x % 32;
    const T* const weight = static_cast<const T*>(p.weight[0]);
#pragma unroll 1
    for (int first = threadIdx.x / 32; first < Op::kHidden; first += kWarps * kTogether) {
      float sum[kTogether][kRows] = {};
#pragma unroll 2
      for (int at = lane; at < kVectors; at += 32) {
        Vector<T, kWidth> w[kTogether];
#pragma unroll
        for (int k = 0; k < kTogether; ++k) {  // behind the last row: that one again, and nothing is kept
          const int row = min(first + k * kWarps, Op::kHidden - 1);
          w[k] = load_vector<T, kWidth>(weight + row * Op::kChannels + at * kWidth);
        }
#pragma unroll
        for (int k = 0; k < kTogether; ++k) add_products<kWidth>(w[k], rows.mean, at * kWidth, sum[k]);
      }
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        const int row = first + k * kWarps;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int mask = 16; mask > 0; mask /= 2) sum[k][r] += shuffle_xor(sum[k][r], mask);
          if (lane == k * kRows + r && row < Op::kHidden) {
            rows.hidden[r][row] = Op::First::apply(sum[k][r] + bias(p.bias[0], row));
          }
        }
      }
    }
    __syncthreads();
  }

  __device__ static void excite(const SqueezeExciteParams& p, int first, const Rows& rows) {
    constexpr int kWidth = width_of(Op::kHidden);
    constexpr int kVectors = Op::kHidden / kWidth;
    constexpr int kLanes = lanes_of(kVectors);
    constexpr int kStep = kThreads / kLanes;
    const int lane = threadIdx.x % kLanes;
    const T* const weight = static_cast<const T*>(p.weight[1]);
#pragma unroll 2
    for (int begin = 0; begin < Op::kOutputs; begin += kStep) {
      const int output = begin + static_cast<int>(threadIdx.x) / kLanes;
      const T* const row = weight + min(output, Op::kOutputs - 1) * Op::kHidden;
      float sum[kRows] = {};
#pragma unroll 4
      for (int at = lane; at < kVectors; at += kLanes) {
        add_products<kWidth>(load_vector<T, kWidth>(row + at * kWidth), rows.hidden, at * kWidth, sum);
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int mask = kLanes / 2; mask > 0; mask /= 2) sum[r] += shuffle_xor(sum[r], mask);
        if (lane == r % kLanes && output < Op::kOutputs && first + r < p.rows) {
          static_cast<T*>(p.y)[static_cast<int64_t>(first + r) * Op::kOutputs + output] =
              Narrow<T>::from(Op::Second::apply(sum[r] + bias(p.bias[1], output)));
        }
      }
    }
  }

  // A launch of its own: a block adds the tiles of one fold of a row.
  __device__ static void fold(const SqueezeExciteParams& p) {
    begin_early();
    const int row = static_cast<int>(blockIdx.x) / p.folds;
    const int begin = static_cast<int>(blockIdx.x) % p.folds * p.tiles_of_fold;
    const float* const sums = p.sums + (static_cast<int64_t>(row) * p.tiles + begin) * Op::kChannels;
    float* const folded = p.folded + static_cast<int64_t>(blockIdx.x) * Op::kChannels;
    add_tiles(sums, min(p.tiles_of_fold, p.tiles - begin), [&](int channel, float total) { folded[channel] = total; });
  }

  __device__ static void run(const SqueezeExciteParams& p) {
    static_assert(kTogether * kRows <= 32, "a lane for each sum of a warp");
    __shared__ Rows rows;
    const int first = static_cast<int>(blockIdx.x) * kRows;
    prefetch(p);
    begin_early();
    if constexpr (Op::kSums) {
      read_sums(p, first, rows);
    } else {
      read_means(p, first, rows);
    }
    squeeze(p, rows);
    excite(p, first, rows);
  }
};

}  // namespace onnxopt
