// Depthwise convolution by fused multiply-adds, NHWC, float32 sums: any storage dtype, window and channel count.
//
// A thread computes kDown x kAcross outputs of kVector neighbouring channels; neighbouring threads take neighbouring
// channels. kHeld: it holds the weights of its channels in registers, converted once, and walks down the rows of
// inputs: each input is loaded and converted once a thread, and serves every output of the thread that sees it.
// Otherwise, for large windows, it walks over rows of the window, at most kMostTaps taps at a time.
//
// Op is generated: Op::Stored and Op::Result are storage dtypes, Op::Before and Op::After the programs in front and
// behind. Before::apply(x, of) and After::apply(sum, of, near, v) compute one element; channel(params, c) reads what
// they need of channel c, After::load(params, at) what is read by element; of.start is what a sum starts from. Where
// Op::kSums is set, each thread also leaves the sums of the outputs that it stores.
#pragma once

#include "depthwise/abi.h"
#include "device/approximate.cuh"
#include "device/early_launch.cuh"
#include "device/index.cuh"
#include "device/load_or_zero.cuh"
#include "device/scalar.cuh"
#include "device/static_window.cuh"
#include "device/tuple.cuh"
#include "device/vector.cuh"

namespace onnxopt {

template <typename Op, typename W, int kVector, int kDown, int kAcross, int kThreads, bool kHeld>
struct Direct {
  using T = typename Op::Stored;
  using Result = typename Op::Result;
  using Before = typename Op::Before;
  using After = typename Op::After;
  static constexpr int kMostTaps = 16;
  static constexpr int kTaps = kHeld || W::kWidth < kMostTaps ? W::kWidth : kMostTaps;  // of a row at a time
  static constexpr int kColumns = W::columns(kAcross, kTaps);
  static constexpr int kSeen = W::rows(kDown);
  static_assert(kHeld || kDown == 1, "windows that are walked over serve one row of outputs");

  struct Place {
    int image;
    int channel;
    int top;  // of the outputs
    int left;
  };

  __device__ static Place place(const DepthwiseParams& p) {
    const DepthwiseGrid& grid = p.grid;
    const unsigned tile_row = quotient(blockIdx.x, grid.inner);
    const unsigned image = quotient(tile_row, grid.middle);
    const unsigned i = (blockIdx.x - tile_row * grid.inner.divisor) * kThreads + threadIdx.x;
    const unsigned across = quotient(i, grid.outer);
    return {static_cast<int>(image), static_cast<int>(i - across * grid.outer.divisor) * kVector,
            static_cast<int>(tile_row - image * grid.middle.divisor) * kDown, static_cast<int>(across) * kAcross};
  }

  // As the value between the two operators is stored in the graph.
  __device__ static float rounded(float x) { return widen(Narrow<T>::from(x)); }

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
                               const float (&sum)[kDown][kAcross][kVector]) {
    const int64_t first = static_cast<int64_t>(at.image) * p.out_height + at.top;
    const int pixel_bytes = p.channels * static_cast<int>(sizeof(Result));
    const int64_t corner = (first * p.out_width + at.left) * p.channels + at.channel;
    typename After::template Near<kVector> near[kDown][kAcross];
    if constexpr (After::kNear) load_near(p, at, corner, near);  // all loads before the first store
    char* row = static_cast<char*>(p.y) + corner * static_cast<int>(sizeof(Result));
    Vector<float, kVector> total{};
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
      char* pixel = row;
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
        if (exists(p, at, i, j)) {
          Vector<Result, kVector> y;
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            y.at[v] = Narrow<Result>::from(After::apply(sum[i][j][v], of[v], near[i][j], v));
            if constexpr (Op::kSums) total.at[v] += widen(y.at[v]);
          }
          store_vector(reinterpret_cast<Result*>(pixel), y);
        }
        pixel += pixel_bytes;
      }
      row += static_cast<int64_t>(p.out_width) * pixel_bytes;
    }
    if constexpr (Op::kSums) {
      const int tiles_across = (p.out_width + kAcross - 1) / kAcross;
      const int64_t tile_row = static_cast<int64_t>(at.image) * p.grid.middle.divisor + at.top / kDown;
      store_vector(p.sums + (tile_row * tiles_across + at.left / kAcross) * p.channels + at.channel, total);
    }
  }

  __device__ static bool exists(const DepthwiseParams& p, const Place& at, int i, int j) {
    return at.top + i < p.out_height && at.left + j < p.out_width;
  }

  __device__ static void load_near(const DepthwiseParams& p, const Place& at, int64_t row,
                                   typename After::template Near<kVector> (&near)[kDown][kAcross]) {
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
      int64_t pixel = row;
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
        if (exists(p, at, i, j)) near[i][j] = After::template load<kVector>(p, pixel);
        pixel += p.channels;
      }
      row += static_cast<int64_t>(p.out_width) * p.channels;
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

  __device__ static void sum_held(const DepthwiseParams& p, const Inputs& in,
                                  const float (&weight)[W::kHeight][kTaps][kVector],
                                  float (&sum)[kDown][kAcross][kVector]) {
    const int64_t row_bytes = static_cast<int64_t>(p.width) * p.channels * static_cast<int>(sizeof(T));
    const char* row = in.corner;
#pragma unroll
    for (int step = 0; step < kSeen; ++step) {
      if (W::sees_row(step, kDown)) {
        const bool inside = static_cast<unsigned>(in.top + step) < static_cast<unsigned>(p.height);
        float x[kColumns][kVector];
        load_row(p, row, inside, in.left, in.before, x);
#pragma unroll
        for (int i = 0; i < kDown; ++i) {
          const int down = step - i * W::kStrideDown;
          if (down >= 0 && down % W::kDilationDown == 0 && down / W::kDilationDown < W::kHeight) {
            add_row(x, weight[down / W::kDilationDown], kTaps, sum[i]);
          }
        }
      }
      row += row_bytes;
    }
  }

  __device__ static void sum_walking(const DepthwiseParams& p, const Inputs& in, const T* weights,
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
    const bool any = at.left < p.out_width;  // else the thread is one too many for its row
    const T* const weights = static_cast<const T*>(p.input[Op::kWeight]) + at.channel;
    float weight[kHeld ? W::kHeight : 1][kTaps][kVector];
    if constexpr (kHeld) {  // of constants, which no kernel writes
#pragma unroll
      for (int r = 0; r < W::kHeight; ++r) {
        if (any) load_weights(weights + static_cast<int64_t>(r) * W::kWidth * p.channels, p.channels, kTaps, weight[r]);
      }
    }
    begin_early();
    if (!any) return;
    const Inputs in(p, at);
    typename After::Of after[kVector];
    float sum[kDown][kAcross][kVector];
#pragma unroll
    for (int v = 0; v < kVector; ++v) after[v] = After::channel(p, at.channel + v);
#pragma unroll
    for (int k = 0; k < kDown * kAcross * kVector; ++k) {
      sum[k / kVector / kAcross][k / kVector % kAcross][k % kVector] = after[k % kVector].start;
    }
    if constexpr (kHeld) {
      sum_held(p, in, weight, sum);
    } else {
      sum_walking(p, in, weights, sum[0]);
    }
    write(p, at, after, sum);
  }
};

}  // namespace onnxopt
