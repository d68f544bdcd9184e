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

template <typename Op, typename W, int kVector, int kDown, int kAcross, int kThreads, int kAhead>
struct Held {
  using T = typename Op::Stored;
  using Result = typename Op::Result;
  using Before = typename Op::Before;
  using After = typename Op::After;
  using Loaded = Vector<T, kVector>;
  using Near = typename After::template Near<kVector>;
  static constexpr int kChannels = Op::kChannels;
  static constexpr int kColumns = W::columns(kAcross);
  static constexpr int kSeen = W::rows(kDown);
  static constexpr int kReachDown = (W::kHeight - 1) * W::kDilationDown;
  static constexpr int kReachAcross = (W::kWidth - 1) * W::kDilationAcross;
  static constexpr int kRing = kAhead < kSeen ? kAhead : kSeen;

  struct Place {
    int image;
    int channel;
    int top;  // of the outputs
    int left;
    int repeated;  // columns that the tile at its left has too
  };

  // Whether tiles can be moved to the left until they are whole, and padding is all that lies outside then.
  __device__ static bool whole(const DepthwiseParams& p) {
    const int right = (p.out_width - 1) * W::kStrideAcross - p.pad_left + kReachAcross;
    return p.out_width >= kAcross && p.pad_left <= kReachAcross && right < p.width + kReachAcross;
  }

  __device__ static float rounded(float x) { return widen(Narrow<T>::from(x)); }

  template <bool kWhole>
  __device__ static constexpr bool may_miss(int j) {
    return !kWhole || j < kReachAcross || j > (kAcross - 1) * W::kStrideAcross;
  }

  template <bool kWhole>
  __device__ static void load_row(const DepthwiseParams& p, const char* row, bool inside, int left,
                                  Loaded (&x)[kColumns]) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      if (!W::sees_column(j, kAcross, W::kWidth)) continue;
      const bool here = inside && (!may_miss<kWhole>(j) ||
                                   static_cast<unsigned>(left + j) < static_cast<unsigned>(p.width));
      x[j] = load_or_zero<T, kVector>(row + j * kChannels * static_cast<int>(sizeof(T)), here);
    }
  }

  template <bool kWhole>
  __device__ static void widen_row(const DepthwiseParams& p, const Loaded (&x)[kColumns], bool inside, int left,
                                   const typename Before::Of (&of)[kVector], float (&values)[kColumns][kVector]) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      if (!W::sees_column(j, kAcross, W::kWidth)) continue;
      const bool here = inside && (!may_miss<kWhole>(j) ||
                                   static_cast<unsigned>(left + j) < static_cast<unsigned>(p.width));
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        const float value = widen(x[j].at[v]);
        values[j][v] = Before::kNothing ? value : here ? rounded(Before::apply(value, of[v])) : 0.0f;
      }
    }
  }

  __device__ static void add_row(const float (&x)[kColumns][kVector], const float (&weight)[W::kWidth][kVector],
                                 float (&sum)[kAcross][kVector]) {
#pragma unroll
    for (int c = 0; c < W::kWidth; ++c) {
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          sum[j][v] = ::fmaf(x[j * W::kStrideAcross + c * W::kDilationAcross][v], weight[c][v], sum[j][v]);
        }
      }
    }
  }

  template <bool kWhole>
  __device__ static void write_row(const DepthwiseParams& p, const Place& at, char* row, bool inside,
                                   const typename After::Of (&of)[kVector], const float (&sum)[kAcross][kVector],
                                   const Near (&near)[kAcross], Vector<float, kVector>& total) {
#pragma unroll
    for (int j = 0; j < kAcross; ++j) {
      Vector<Result, kVector> y;
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        y.at[v] = Narrow<Result>::from(After::apply(sum[j][v], of[v], near[j], v));
      }
      const bool exists = inside && (kWhole || at.left + j < p.out_width);
      if (exists) {
        store_at_once(reinterpret_cast<Result*>(row + j * kChannels * static_cast<int>(sizeof(Result))), y);
        if constexpr (Op::kSums) {
#pragma unroll
          for (int v = 0; v < kVector; ++v) total.at[v] += j < at.repeated ? 0.0f : widen(y.at[v]);
        }
      }
    }
  }

  template <bool kWhole>
  __device__ static void body(const DepthwiseParams& p, const Place& at,
                              const float (&weight)[W::kHeight][W::kWidth][kVector]) {
    const int top = at.top * W::kStrideDown - p.pad_top;
    const int left = at.left * W::kStrideAcross - p.pad_left;
    const int64_t row_bytes = static_cast<int64_t>(p.width) * (kChannels * static_cast<int>(sizeof(T)));
    const int64_t out_bytes = static_cast<int64_t>(p.out_width) * (kChannels * static_cast<int>(sizeof(Result)));
    const char* row = static_cast<const char*>(p.input[Op::kX]) +
                      (static_cast<int64_t>(at.image) * p.height + top) * row_bytes +
                      (static_cast<int64_t>(left) * kChannels + at.channel) * static_cast<int>(sizeof(T));
    const int64_t first = (static_cast<int64_t>(at.image) * p.out_height + at.top) * p.out_width + at.left;
    char* to = static_cast<char*>(p.y) + (first * kChannels + at.channel) * static_cast<int>(sizeof(Result));
    const auto inside = [&](int step) { return static_cast<unsigned>(top + step) < static_cast<unsigned>(p.height); };
    Loaded loaded[kRing][kColumns];
#pragma unroll
    for (int step = 0; step < kRing; ++step) {
      if (W::sees_row(step, kDown)) load_row<kWhole>(p, row, inside(step), left, loaded[step]);
      row += row_bytes;
    }
    typename Before::Of before[kVector];
    typename After::Of after[kVector];
#pragma unroll
    for (int v = 0; v < kVector; ++v) before[v] = Before::channel(p, at.channel + v);
#pragma unroll
    for (int v = 0; v < kVector; ++v) after[v] = After::channel(p, at.channel + v);
    float sum[kDown][kAcross][kVector];
#pragma unroll
    for (int k = 0; k < kDown * kAcross * kVector; ++k) {
      sum[k / kVector / kAcross][k / kVector % kAcross][k % kVector] = after[k % kVector].start;
    }
    Near near[kDown][kAcross];
    Vector<float, kVector> total{};
#pragma unroll
    for (int step = 0; step < kSeen; ++step) {
      float x[kColumns][kVector];
      if (W::sees_row(step, kDown)) {
        widen_row<kWhole>(p, loaded[step % kRing], inside(step), left, before, x);
      }
      if (step + kRing < kSeen) {
        if (W::sees_row(step + kRing, kDown)) {
          load_row<kWhole>(p, row, inside(step + kRing), left, loaded[step % kRing]);
        }
        row += row_bytes;
      }
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
        const int down = step - i * W::kStrideDown;
        if (down == 0 && After::kNear) {
#pragma unroll
          for (int j = 0; j < kAcross; ++j) {
            if (at.top + i < p.out_height && (kWhole || at.left + j < p.out_width)) {
              near[i][j] = After::template load<kVector>(
                  p, (first + static_cast<int64_t>(i) * p.out_width + j) * kChannels + at.channel);
            }
          }
        }
        if (down >= 0 && down % W::kDilationDown == 0 && down / W::kDilationDown < W::kHeight) {
          add_row(x, weight[down / W::kDilationDown], sum[i]);
        }
        if (down == kReachDown) {
          write_row<kWhole>(p, at, to, at.top + i < p.out_height, after, sum[i], near[i], total);
          to += out_bytes;
        }
      }
    }
    if constexpr (Op::kSums) {
      const int tiles_across = (p.out_width + kAcross - 1) / kAcross;
      const int64_t tile_row = static_cast<int64_t>(at.image) * p.grid.middle.divisor + at.top / kDown;
      store_vector(p.sums + (tile_row * tiles_across + (at.left + at.repeated) / kAcross) * kChannels + at.channel,
                   total);
    }
  }

  __device__ static void run(const DepthwiseParams& p) {
    const DepthwiseGrid& grid = p.grid;
    constexpr unsigned kGroups = kChannels / kVector;
    const unsigned tile_row = quotient(blockIdx.x, grid.inner);
    const unsigned image = quotient(tile_row, grid.middle);
    const unsigned i = (blockIdx.x - tile_row * grid.inner.divisor) * kThreads + threadIdx.x;
    const unsigned across = i / kGroups;
    Place at{static_cast<int>(image), static_cast<int>(i - across * kGroups) * kVector,
             static_cast<int>(tile_row - image * grid.middle.divisor) * kDown, static_cast<int>(across) * kAcross, 0};
    const bool any = at.left < p.out_width;
    const T* const weights = static_cast<const T*>(p.input[Op::kWeight]) + at.channel;
    float weight[W::kHeight][W::kWidth][kVector];
    if (any) {
#pragma unroll
      for (int k = 0; k < W::kTaps; ++k) {
        const auto tap = load_vector<T, kVector>(weights + k * kChannels);
#pragma unroll
        for (int v = 0; v < kVector; ++v) weight[k / W::kWidth][k % W::kWidth][v] = widen(tap.at[v]);
      }
    }
    begin_early();
    if (!any) return;
    if (whole(p)) {
      if (at.left + kAcross > p.out_width) {
        at.repeated = at.left + kAcross - p.out_width;
        at.left -= at.repeated;
      }
      body<true>(p, at, weight);
    } else {
#ifndef ONLY_WHOLE
      body<false>(p, at, weight);
#endif
    }
  }
};

}  // namespace onnxopt
