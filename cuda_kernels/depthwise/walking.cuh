// Depthwise convolution by fused multiply-adds, NHWC, float32 sums: windows whose weights do not fit into registers, of
// any storage dtype and channel count.
//
// A thread computes kAcross neighbouring outputs of kVector neighbouring channels; neighbouring threads take
// neighbouring channels. It walks over the rows of the window, at most kMostTaps taps at a time. Op is as for held.cuh.
#pragma once

#include "depthwise/abi.h"
#include "device/approximate.cuh"
#include "device/early_launch.cuh"
#include "device/index.cuh"
#include "device/load_or_zero.cuh"
#include "device/scalar.cuh"
#include "device/static_window.cuh"
#include "device/vector.cuh"

namespace onnxopt {

template <typename Op, typename W, int kVector, int kAcross, int kThreads>
struct WalkingWindow {
  using T = typename Op::Stored;
  using Result = typename Op::Result;
  using Before = typename Op::Before;
  using After = typename Op::After;
  static constexpr int kMostTaps = 16;
  static constexpr int kTaps = W::kWidth < kMostTaps ? W::kWidth : kMostTaps;  // of a row at a time
  static constexpr int kColumns = W::columns(kAcross, kTaps);

  struct Place {
    int image;
    int channel;
    int top;  // of the output
    int left;
  };

  __device__ static Place place(const DepthwiseParams& p) {
    const DepthwiseGrid& grid = p.grid;
    const unsigned tile_row = quotient(blockIdx.x, grid.inner);
    const unsigned image = quotient(tile_row, grid.middle);
    const unsigned i = (blockIdx.x - tile_row * grid.inner.divisor) * kThreads + threadIdx.x;
    const unsigned across = quotient(i, grid.outer);
    return {static_cast<int>(image), static_cast<int>(i - across * grid.outer.divisor) * kVector,
            static_cast<int>(tile_row - image * grid.middle.divisor), static_cast<int>(across) * kAcross};
  }

  // As the value between the two operators is stored in the graph.
  __device__ static float rounded(float x) { return Before::kStored ? x : widen(Narrow<T>::from(x)); }

  // row: where the first of kColumns pixels lies, or would, `left` of it.
  __device__ static void load_row(const DepthwiseParams& p, const char* row, bool inside, int left,
                                  const typename Before::Of (&of)[kVector], float (&x)[kColumns][kVector]) {
    const int pixel_bytes = p.channels * static_cast<int>(sizeof(T));
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      if (W::sees_column(j, kAcross, kTaps)) {
        const bool here = inside && static_cast<unsigned>(left + j) < static_cast<unsigned>(p.width);
        const Vector<T, kVector> loaded = load_or_zero<T, kVector>(row, here);
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          const float value = widen(loaded.at[v]);
          x[j][v] = Before::kNothing ? value : here ? rounded(Before::apply(value, of[v])) : 0.0f;
        }
      }
      row += pixel_bytes;
    }
  }

  __device__ static void load_weights(const T* row, int channels, int taps, float (&weight)[kTaps][kVector]) {
#pragma unroll
    for (int c = 0; c < kTaps; ++c) {
      if (c < taps) {
        const auto tap = load_vector<T, kVector>(row + static_cast<int64_t>(c) * channels);
#pragma unroll
        for (int v = 0; v < kVector; ++v) weight[c][v] = widen(tap.at[v]);
      }
    }
  }

  // A row of inputs through a row of weights.
  __device__ static void add_row(const float (&x)[kColumns][kVector], const float (&weight)[kTaps][kVector], int taps,
                                 float (&sum)[kAcross][kVector]) {
#pragma unroll
    for (int c = 0; c < kTaps; ++c) {
      if (c < taps) {
#pragma unroll
        for (int j = 0; j < kAcross; ++j) {
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            sum[j][v] = ::fmaf(x[j * W::kStrideAcross + c * W::kDilationAcross][v], weight[c][v], sum[j][v]);
          }
        }
      }
    }
  }

  __device__ static void write(const DepthwiseParams& p, const Place& at, const typename After::Of (&of)[kVector],
                               const float (&sum)[kAcross][kVector]) {
    const int64_t first = static_cast<int64_t>(at.image) * p.out_height + at.top;
    const int64_t corner = (first * p.out_width + at.left) * p.channels + at.channel;
    const int here = p.out_width - at.left < kAcross ? p.out_width - at.left : kAcross;
    typename After::template Near<kVector> near[kAcross];
#pragma unroll
    for (int j = 0; j < kAcross; ++j) {  // all loads before the first store
      if (After::kNear && j < here) near[j] = After::template load<kVector>(p, corner + int64_t{j} * p.channels);
    }
    Vector<float, kVector> total{};
#pragma unroll
    for (int j = 0; j < kAcross; ++j) {
      if (j >= here) continue;
      Vector<Result, kVector> y;
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        y.at[v] = Narrow<Result>::from(After::apply(sum[j][v], of[v], near[j], v));
        if constexpr (Op::kSums) total.at[v] += widen(y.at[v]);
      }
      store_vector(static_cast<Result*>(p.y) + corner + int64_t{j} * p.channels, y);
    }
    if constexpr (Op::kSums) {
      const int tiles_across = (p.out_width + kAcross - 1) / kAcross;
      const int64_t row = static_cast<int64_t>(at.image) * p.grid.middle.divisor + at.top;
      store_vector(p.sums + (row * tiles_across + at.left / kAcross) * p.channels + at.channel, total);
    }
  }

  // The inputs that a thread reads, and what it needs to know of its channels.
  struct Inputs {
    int top;
    int left;
    const char* corner;  // where the input at top and left lies, or would
    typename Before::Of before[kVector];

    __device__ Inputs(const DepthwiseParams& p, const Place& at)
        : top(at.top * W::kStrideDown - p.pad_top), left(at.left * W::kStrideAcross - p.pad_left) {
      const int64_t row = static_cast<int64_t>(at.image) * p.height + top;
      corner = static_cast<const char*>(p.input[Op::kX]) +
               ((row * p.width + left) * p.channels + at.channel) * static_cast<int>(sizeof(T));
#pragma unroll
      for (int v = 0; v < kVector; ++v) before[v] = Before::channel(p, at.channel + v);
    }
  };

  __device__ static void sum_window(const DepthwiseParams& p, const Inputs& in, const T* weights,
                                    float (&sum)[kAcross][kVector]) {
    const int64_t pixel_bytes = static_cast<int64_t>(p.channels) * static_cast<int>(sizeof(T));
    const char* row = in.corner;
#pragma unroll 1
    for (int r = 0; r < W::kHeight; ++r) {
      const bool inside = static_cast<unsigned>(in.top + r * W::kDilationDown) < static_cast<unsigned>(p.height);
#pragma unroll 1
      for (int c = 0; c < W::kWidth; c += kTaps) {
        const int taps = W::kWidth % kTaps == 0 ? kTaps : W::kWidth - c;
        float weight[kTaps][kVector];
        float x[kColumns][kVector];
        load_weights(weights + static_cast<int64_t>(r * W::kWidth + c) * p.channels, p.channels, taps, weight);
        load_row(p, row + c * W::kDilationAcross * pixel_bytes, inside, in.left + c * W::kDilationAcross, in.before, x);
        add_row(x, weight, taps, sum);
      }
      row += pixel_bytes * p.width * W::kDilationDown;
    }
  }

  __device__ static void run(const DepthwiseParams& p) {
    const Place at = place(p);
    begin_early();
    if (at.left >= p.out_width) return;  // the thread is one too many for its row
    const Inputs in(p, at);
    typename After::Of after[kVector];
    float sum[kAcross][kVector];
#pragma unroll
    for (int v = 0; v < kVector; ++v) after[v] = After::channel(p, at.channel + v);
#pragma unroll
    for (int k = 0; k < kAcross * kVector; ++k) sum[k / kVector][k % kVector] = after[k % kVector].start;
    sum_window(p, in, static_cast<const T*>(p.input[Op::kWeight]) + at.channel, sum);
    write(p, at, after, sum);
  }
};

}  // namespace onnxopt
