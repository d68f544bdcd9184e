// A tile of outputs of a depthwise convolution, NHWC: kDown x kAcross outputs of kVector neighbouring channels, by one
// thread that holds the weights of these channels in registers. Where halves of the channels gate each other, it sums
// twice as many lanes: those of its channels, and those Op::kChannels further.
//
// Inputs come row by row, kAhead rows before they are used; each is loaded and converted once, and serves every output
// of the tile that sees it. A row of outputs is stored as soon as it is complete. Columns of inputs and outputs lie at
// distances that are known when compiling.
#pragma once

#include "depthwise/abi.h"
#include "device/approximate.cuh"
#include "device/load_or_zero.cuh"
#include "device/scalar.cuh"
#include "device/static_window.cuh"
#include "device/vector.cuh"

namespace onnxopt {

// Where a tile lies. top, left: of its outputs. repeated: columns that the tile at its left has too.
struct HeldPlace {
  int image;
  int channel;
  int top;
  int left;
  int repeated;
};

// Op is as for held.cuh. kWhole: every column of outputs exists, and of the inputs only those can lie outside that the
// first or the last output alone sees through all but one of the taps; else every column is looked at.
template <typename Op, typename W, int kVector, int kDown, int kAcross, bool kWhole>
struct HeldTile {
  using T = typename Op::Stored;
  using Result = typename Op::Result;
  using Before = typename Op::Before;
  using After = typename Op::After;
  static constexpr int kLanes = kVector * Op::kHalves;
  struct Loaded {
    Vector<T, kVector> part[Op::kHalves];
    __device__ T at(int lane) const { return part[lane / kVector].at[lane % kVector]; }
  };
  using Near = typename After::template Near<kVector>;
  using Weights = float[W::kHeight][W::kWidth][kLanes];
  static constexpr int kColumns = W::columns(kAcross);
  static constexpr int kSeen = W::rows(kDown);
  static constexpr int kReachDown = (W::kHeight - 1) * W::kDilationDown;
  static constexpr int kReachAcross = (W::kWidth - 1) * W::kDilationAcross;
  // Rows of inputs on their way at a time. The sums of one row of a large window take long enough for the next to come.
  static constexpr int kMostAhead = W::kHeight > 3 ? 1 : 3;
  static constexpr int kAhead = kSeen < kMostAhead ? kSeen : kMostAhead;
  static constexpr int kHalf = Op::kChannels * static_cast<int>(sizeof(T));  // bytes
  static constexpr int kPixel = kHalf * Op::kHalves;
  static constexpr int kResultPixel = Op::kChannels * static_cast<int>(sizeof(Result));

  const DepthwiseParams& p;
  const HeldPlace at;
  const int top;  // of the inputs
  const int left;
  const int64_t row_bytes;
  const int64_t first;  // the first output's element

  __device__ HeldTile(const DepthwiseParams& params, const HeldPlace& place)
      : p(params),
        at(place),
        top(place.top * W::kStrideDown - params.pad_top),
        left(place.left * W::kStrideAcross - params.pad_left),
        row_bytes(static_cast<int64_t>(params.width) * kPixel),
        first(((static_cast<int64_t>(place.image) * params.out_height + place.top) * params.out_width + place.left) *
                  Op::kChannels +
              place.channel) {}

  // Whether padding is all that whole tiles see beside the input, as kWhole promises.
  __device__ static bool pads_fit(const DepthwiseParams& p) {
    const int last = (p.out_width - 1) * W::kStrideAcross - p.pad_left + kReachAcross;
    return p.pad_left <= kReachAcross && last < p.width + kReachAcross;
  }

  __device__ static constexpr bool sees(int j) { return W::sees_column(j, kAcross, W::kWidth); }

  __device__ bool row_exists(int step) const {
    return static_cast<unsigned>(top + step) < static_cast<unsigned>(p.height);
  }

  __device__ bool column_exists(int j) const {
    if (kWhole && j >= kReachAcross && j <= (kAcross - 1) * W::kStrideAcross) return true;
    return static_cast<unsigned>(left + j) < static_cast<unsigned>(p.width);
  }

  __device__ bool stores(int i, int j) const {
    return at.top + i < p.out_height && (kWhole || at.left + j < p.out_width);
  }

  // As the value between the two operators is stored in the graph.
  __device__ static float rounded(float x) { return Before::kStored ? x : widen(Narrow<T>::from(x)); }

  // row: where the first of kColumns pixels lies, or would.
  __device__ void load_row(const char* row, int step, Loaded (&x)[kColumns]) const {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      if (!sees(j)) continue;
#pragma unroll
      for (int h = 0; h < Op::kHalves; ++h) {
        x[j].part[h] = load_or_zero<T, kVector>(row + j * kPixel + h * kHalf, row_exists(step) && column_exists(j));
      }
    }
  }

  __device__ void widen_row(const Loaded (&x)[kColumns], int step, const typename Before::Of (&of)[kLanes],
                            float (&values)[kColumns][kLanes]) const {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      if (!sees(j)) continue;
      const bool here = row_exists(step) && column_exists(j);
#pragma unroll
      for (int v = 0; v < kLanes; ++v) {
        const float value = widen(x[j].at(v));
        values[j][v] = Before::kNothing ? value : here ? rounded(Before::apply(value, of[v])) : 0.0f;
      }
    }
  }

  // A row of inputs through a row of weights.
  __device__ static void add_row(const float (&x)[kColumns][kLanes], const float (&weight)[W::kWidth][kLanes],
                                 float (&sum)[kAcross][kLanes]) {
#pragma unroll
    for (int c = 0; c < W::kWidth; ++c) {
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
#pragma unroll
        for (int v = 0; v < kLanes; ++v) {
          sum[j][v] = ::fmaf(x[j * W::kStrideAcross + c * W::kDilationAcross][v], weight[c][v], sum[j][v]);
        }
      }
    }
  }

  __device__ int64_t element(int i, int j) const {
    return first + (static_cast<int64_t>(i) * p.out_width + j) * Op::kChannels;
  }

  // What the program behind reads for the row of outputs that is complete with row `step` of the inputs.
  __device__ void load_near(int step, Near (&near)[kDown][kAcross]) const {
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
      if (!After::kNear || step != i * W::kStrideDown + kReachDown) continue;
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
        if (stores(i, j)) near[i][j] = After::template load<kVector>(p, element(i, j));
      }
    }
  }

  __device__ static float applied(const float (&sum)[kLanes], const typename After::Of& of, const Near& near, int v) {
    if constexpr (Op::kHalves == 2) {
      return After::apply(sum[v], sum[kVector + v], of, near, v);
    } else {
      return After::apply(sum[v], of, near, v);
    }
  }

  // Stores row i of the outputs to `row`, and adds what it stores to `total`.
  __device__ void write_row(char* row, int i, const typename After::Of (&of)[kVector],
                            const float (&sum)[kAcross][kLanes], const Near (&near)[kAcross],
                            Vector<float, kVector>& total) const {
#pragma unroll
    for (int j = 0; j < kAcross; ++j) {
      Vector<Result, kVector> y;
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        y.at[v] = Narrow<Result>::from(applied(sum[j], of[v], near[j], v));
      }
      if (!stores(i, j)) continue;
      store_at_once(reinterpret_cast<Result*>(row + j * kResultPixel), y);
      if constexpr (Op::kSums) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) total.at[v] += j < at.repeated ? 0.0f : widen(y.at[v]);
      }
    }
  }

  // Computes the tile. Adds its results to `total` where Op::kSums is set, without the repeated ones.
  __device__ void run(const Weights& weight, Vector<float, kVector>& total) const {
    const char* row = static_cast<const char*>(p.input[Op::kX]) +
                      (static_cast<int64_t>(at.image) * p.height + top) * row_bytes +
                      static_cast<int64_t>(left) * kPixel + at.channel * static_cast<int>(sizeof(T));
    char* to = static_cast<char*>(p.y) + first * static_cast<int>(sizeof(Result));
    Loaded loaded[kAhead][kColumns];
    Near near[kDown][kAcross];
#pragma unroll
    for (int step = 0; step < kAhead; ++step) {
      if (W::sees_row(step, kDown)) load_row(row, step, loaded[step]);
      load_near(step, near);
      row += row_bytes;
    }
    typename Before::Of before[kLanes];
    typename After::Of after[kVector];
    float sum[kDown][kAcross][kLanes];
#pragma unroll
    for (int v = 0; v < kLanes; ++v) before[v] = Before::channel(p, at.channel + v);
#pragma unroll
    for (int v = 0; v < kVector; ++v) after[v] = After::channel(p, at.channel + v);
#pragma unroll
    for (int k = 0; k < kDown * kAcross * kLanes; ++k) {
      const int v = k % kLanes;
      sum[k / kLanes / kAcross][k / kLanes % kAcross][v] = v < kVector ? after[v].start : after[v - kVector].half_start;
    }
#pragma unroll
    for (int step = 0; step < kSeen; ++step) {
      float x[kColumns][kLanes];
      if (W::sees_row(step, kDown)) widen_row(loaded[step % kAhead], step, before, x);
      if (step + kAhead < kSeen) {
        if (W::sees_row(step + kAhead, kDown)) load_row(row, step + kAhead, loaded[step % kAhead]);
        load_near(step + kAhead, near);
        row += row_bytes;
      }
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
        const int down = step - i * W::kStrideDown;
        if (down >= 0 && down % W::kDilationDown == 0 && down / W::kDilationDown < W::kHeight) {
          add_row(x, weight[down / W::kDilationDown], sum[i]);
        }
        if (down == kReachDown) {
          write_row(to, i, after, sum[i], near[i], total);
          to += static_cast<int64_t>(p.out_width) * kResultPixel;
        }
      }
    }
  }
};

}  // namespace onnxopt
