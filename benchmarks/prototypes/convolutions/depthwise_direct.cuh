// Depthwise convolution by fused multiply-adds, NHWC, float32 sums: any storage dtype, any channel count.
//
// A thread computes kDown x kAcross outputs of kVector neighbouring channels. It holds the weights of its channels in
// registers, converted once, and walks down the rows of inputs: each input is loaded and converted once a thread, and
// serves every output of the thread that sees it. Neighbouring threads take neighbouring channels. The weights come as
// [kernel_height, kernel_width, channels], so that threads read them side by side.
#pragma once

#include "depthwise_abi.h"
#include "depthwise_ops.cuh"
#include "depthwise_window.cuh"
#include "load_or_zero.cuh"
#include "device/vector.cuh"

namespace onnxopt {

template <typename T, typename W, int kVector, int kDown, int kAcross, int kThreads, bool kSums, typename Before,
          typename After>
struct Direct {
  using Params = DepthwiseParams<T, Before, After>;
  static constexpr int kColumns = W::columns(kAcross);
  static constexpr int kSeen = W::rows(kDown);

  struct Place {
    int channel;
    int top;  // of the outputs
    int left;
  };

  __device__ static Place place(const DepthwiseShape& shape) {
    const unsigned groups = static_cast<unsigned>(shape.channels) / kVector;
    const unsigned i = blockIdx.x * kThreads + threadIdx.x;
    const unsigned across = i / groups;
    return {static_cast<int>(i - across * groups) * kVector, static_cast<int>(blockIdx.y) * kDown,
            static_cast<int>(across) * kAcross};
  }

  // row: where the first of kColumns pixels lies, or would.
  __device__ static void load_row(const Params& p, const char* row, bool inside, int left,
                                  const typename Before::Of (&of)[kVector], float (&x)[kColumns][kVector]) {
    const int pixel_bytes = p.shape.channels * static_cast<int>(sizeof(T));
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const bool here = inside && static_cast<unsigned>(left + j) < static_cast<unsigned>(p.shape.width);
      const Vector<T, kVector> loaded = load_or_zero<T, kVector>(row, here);
      row += pixel_bytes;
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        const float value = widen(loaded.at[v]);
        x[j][v] = Before::kNothing ? value : here ? round_to(Before::apply(value, of[v])) : 0.0f;
      }
    }
  }

  // As the value between the two operators is stored in the graph.
  __device__ static float round_to(float x) { return widen(Narrow<T>::from(x)); }

  __device__ static void accumulate(int step, const float (&x)[kColumns][kVector],
                                    const float (&weight)[W::kTaps][kVector], float (&sum)[kDown][kAcross][kVector]) {
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
      const int down = step - i * W::kStrideDown;
      if (down < 0 || down % W::kDilationDown != 0 || down / W::kDilationDown >= W::kHeight) continue;
      const int r = down / W::kDilationDown;
#pragma unroll
      for (int c = 0; c < W::kWidth; ++c) {
#pragma unroll
        for (int j = 0; j < kAcross; ++j) {
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            sum[i][j][v] =
                ::fmaf(x[j * W::kStrideAcross + c * W::kDilationAcross][v], weight[r * W::kWidth + c][v], sum[i][j][v]);
          }
        }
      }
    }
  }

  __device__ static void write(const Params& p, const Place& at, const typename After::Of (&of)[kVector],
                               const float (&sum)[kDown][kAcross][kVector]) {
    const int pixel_bytes = p.shape.channels * static_cast<int>(sizeof(T));
    const int64_t first_row = static_cast<int64_t>(blockIdx.z) * p.shape.out_height + at.top;
    char* row = reinterpret_cast<char*>(p.y) + (first_row * p.shape.out_width + at.left) * pixel_bytes +
                at.channel * static_cast<int>(sizeof(T));
    float total[kVector] = {};
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
      char* pixel = row;
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
        const bool exists = at.top + i < p.shape.out_height && at.left + j < p.shape.out_width;
        Vector<T, kVector> y;
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          const float value = After::finish(sum[i][j][v], of[v]);
          if (kSums) total[v] += exists ? value : 0.0f;
          y.at[v] = Narrow<T>::from(value);
        }
        if (exists) store_vector(reinterpret_cast<T*>(pixel), y);
        pixel += pixel_bytes;
      }
      row += static_cast<int64_t>(p.shape.out_width) * pixel_bytes;
    }
    if constexpr (kSums) {
      const int64_t tile_row = static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y;
      const int64_t tile = tile_row * p.shape.per_row.divisor + at.left / kAcross;
#pragma unroll
      for (int v = 0; v < kVector; ++v) p.sums[tile * p.shape.channels + at.channel + v] = total[v];
    }
  }

  // Grid: channels / kVector * tiles across over the threads, tiles down, batch.
  __device__ static void run(const Params& p) {
    const Place at = place(p.shape);
    if (at.left >= p.shape.out_width) return;
    float weight[W::kTaps][kVector];
    typename Before::Of before[kVector];
    typename After::Of after[kVector];
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      before[v] = p.before.channel(at.channel + v);
      after[v] = p.after.channel(at.channel + v);
    }
#pragma unroll
    for (int k = 0; k < W::kTaps; ++k) {
      const auto tap = load_vector<T, kVector>(p.weight + k * p.shape.channels + at.channel);
#pragma unroll
      for (int v = 0; v < kVector; ++v) weight[k][v] = widen(tap.at[v]);
    }
    const int top = at.top * W::kStrideDown - p.shape.pad_top;
    const int left = at.left * W::kStrideAcross - p.shape.pad_left;
    const int pixel_bytes = p.shape.channels * static_cast<int>(sizeof(T));
    const int64_t first_row = static_cast<int64_t>(blockIdx.z) * p.shape.height + top;
    const char* row = reinterpret_cast<const char*>(p.x) + (first_row * p.shape.width + left) * pixel_bytes +
                      at.channel * static_cast<int>(sizeof(T));
    float sum[kDown][kAcross][kVector];
#pragma unroll
    for (int k = 0; k < kDown * kAcross * kVector; ++k) {
      sum[k / kVector / kAcross][k / kVector % kAcross][k % kVector] = After::start(after[k % kVector]);
    }
#pragma unroll
    for (int step = 0; step < kSeen; ++step) {
      const int h = top + step;
      const bool inside = static_cast<unsigned>(h) < static_cast<unsigned>(p.shape.height);
      float x[kColumns][kVector];
      load_row(p, row, inside, left, before, x);
      row += static_cast<int64_t>(p.shape.width) * pixel_bytes;
      accumulate(step, x, weight, sum);
    }
    write(p, at, after, sum);
  }
};

}  // namespace onnxopt
