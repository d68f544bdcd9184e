// Max and average pools of NHWC and NDHWC tensors. A thread computes kDown x kAcross neighbouring outputs of some
// channels.
//
// Where windows have no dilation, the thread goes once over the pixels that its windows cover: each row's pixels are
// reduced for every output of that row first, and the rows' results for every output. Coordinates are clamped to the
// tensor, so that no load is a branch. A pixel in the padding is then the nearest pixel of the tensor, which lies in
// the same window, as pads are smaller than windows: for a max it changes nothing, an average takes zeros instead. Of a
// volume, the planes that a window covers come one after the other.
#pragma once

#include "device/early_launch.cuh"
#include "device/index.cuh"
#include "device/static_window.cuh"
#include "pool/abi.h"
#include "pool/results.cuh"

namespace onnxopt {

constexpr int kUnrolledTaps = 25;     // places of a window; of a larger one, the rows are a loop
constexpr int kUnrolledColumns = 16;  // of a window

__device__ inline int clamped(int at, int extent) { return at < 0 ? 0 : at < extent ? at : extent - 1; }

__device__ inline bool is_inside(int at, int extent) { return at >= 0 && at < extent; }

// How many of `taps` neighbours from `first` on lie inside.
__device__ inline int taps_inside(int first, int taps, int extent) {
  const int end = first + taps < extent ? first + taps : extent;
  return end - (first > 0 ? first : 0);
}

// The pixels that the windows of neighbouring outputs cover.
template <typename Window, int kDown, int kAcross>
struct PoolTile {
  static constexpr int kRows = (kDown - 1) * Window::kStrideDown + Window::kHeight;
  static constexpr int kColumns = (kAcross - 1) * Window::kStrideAcross + Window::kWidth;

  // Whether none of them lies in the padding.
  __device__ static bool is_inside(const PoolParams& params, int top, int left) {
    return top >= 0 && top + kRows <= params.height && left >= 0 && left + kColumns <= params.width;
  }
};

// The first output of a thread's tile, and the data of its image and of its plane of outputs, from the thread's first
// channel on.
template <typename T>
struct PoolPlace {
  int plane;
  int top;
  int left;
  const T* x;
  T* y;
};

template <typename T, bool kIsVolume, int kWidth, int kDown, int kAcross>
__device__ inline PoolPlace<T> place_of(const PoolParams& params, unsigned int i) {
  const unsigned int pixel = quotient(i, params.groups);
  const unsigned int row = quotient(pixel, params.across);
  const unsigned int plane = quotient(row, params.down);  // of all planes of outputs
  const unsigned int image = kIsVolume ? quotient(plane, params.through) : plane;
  const uint64_t channel = (i - pixel * params.groups.divisor) * kWidth;
  const uint64_t pixels = static_cast<uint64_t>(params.height) * params.width * (kIsVolume ? params.depth : 1);
  const uint64_t out_pixels = static_cast<uint64_t>(params.out_height) * params.out_width;
  return {static_cast<int>(plane - (kIsVolume ? image * params.through.divisor : image)),
          static_cast<int>(row - plane * params.down.divisor) * kDown,
          static_cast<int>(pixel - row * params.across.divisor) * kAcross,
          static_cast<const T*>(params.x) + image * pixels * params.channels + channel,
          static_cast<T*>(params.y) + plane * out_pixels * params.channels + channel};
}

// Over the plane at place.x. kInside: no pixel of it lies in the padding. All of a row's loads come before what is made
// of them, and no load is a branch.
template <bool kInside, typename Result, typename Window, int kDown, int kAcross>
__device__ inline void reduce_dense(const PoolParams& params, const PoolPlace<typename Result::Storage>& place,
                                    Result (&results)[kDown][kAcross]) {
  using T = typename Result::Storage;
  using Tile = PoolTile<Window, kDown, kAcross>;
  constexpr int kUnrolledRows = Window::kTaps <= kUnrolledTaps ? Tile::kRows : 1;
  static_assert(kUnrolledRows == Tile::kRows || kDown == 1, "rows in a loop belong to one output");
  const int top = place.top * Window::kStrideDown - params.pad_top;
  const int left = place.left * Window::kStrideAcross - params.pad_left;
#pragma unroll kUnrolledRows
  for (int r = 0; r < Tile::kRows; ++r) {
    const int h = kInside ? top + r : clamped(top + r, params.height);
    const T* const line = place.x + static_cast<int64_t>(h) * params.width * params.channels;
    Vector<T, Result::kWidth> pixels[Tile::kColumns];
#pragma unroll
    for (int c = 0; c < Tile::kColumns; ++c) {
      const int w = kInside ? left + c : clamped(left + c, params.width);
      pixels[c] = load_vector<T, Result::kWidth>(line + static_cast<int64_t>(w) * params.channels);
    }
    Result of_row[kAcross];
#pragma unroll
    for (int c = 0; c < Tile::kColumns; ++c) {
      if constexpr (Result::kTakesZeros && !kInside) {
        clear_unless(is_inside(top + r, params.height) && is_inside(left + c, params.width), pixels[c]);
      }
#pragma unroll
      for (int a = 0; a < kAcross; ++a) {
        const int tap = c - a * Window::kStrideAcross;
        if (tap >= 0 && tap < Window::kWidth) of_row[a].take(pixels[c]);
      }
    }
#pragma unroll
    for (int d = 0; d < kDown; ++d) {
      const int tap = r - d * Window::kStrideDown;
      if (tap < 0 || tap >= Window::kHeight) continue;
#pragma unroll
      for (int a = 0; a < kAcross; ++a) results[d][a].merge(of_row[a]);
    }
  }
}

// Of one window, over the plane at place.x. Returns how many of its places lie inside of the tensor.
template <typename Result, typename Window>
__device__ inline int reduce_places(const PoolParams& params, const PoolPlace<typename Result::Storage>& place,
                                    Result& result) {
  int inside = 0;
#pragma unroll 1
  for (int r = 0; r < Window::kHeight; ++r) {
    const int h = place.top * Window::kStrideDown - params.pad_top + r * Window::kDilationDown;
    if (!is_inside(h, params.height)) continue;
    const auto* const line = place.x + static_cast<int64_t>(h) * params.width * params.channels;
#pragma unroll 4
    for (int c = 0; c < Window::kWidth; ++c) {
      const int w = place.left * Window::kStrideAcross - params.pad_left + c * Window::kDilationAcross;
      if (!is_inside(w, params.width)) continue;
      result.take(
          load_vector<typename Result::Storage, Result::kWidth>(line + static_cast<int64_t>(w) * params.channels));
      ++inside;
    }
  }
  return inside;
}

// Over the plane at place.x. Returns how many places of a window that is not dense lie inside.
template <bool kDense, typename Result, typename Window, int kDown, int kAcross>
__device__ inline int reduce_plane(const PoolParams& params, const PoolPlace<typename Result::Storage>& place,
                                   Result (&results)[kDown][kAcross]) {
  if constexpr (kDense) {
    const int top = place.top * Window::kStrideDown - params.pad_top;
    const int left = place.left * Window::kStrideAcross - params.pad_left;
    if (PoolTile<Window, kDown, kAcross>::is_inside(params, top, left)) {
      reduce_dense<true, Result, Window>(params, place, results);
    } else {
      reduce_dense<false, Result, Window>(params, place, results);
    }
    return 0;
  } else {
    static_assert(kDown == 1 && kAcross == 1, "windows whose places are told one by one are not shared");
    return reduce_places<Result, Window>(params, place, results[0][0]);
  }
}

// Over all planes of the window that lie inside; returns their number. inside: as reduce_plane returns it, of all.
template <bool kDense, typename Result, typename Window, int kDown, int kAcross>
__device__ inline int reduce_planes(const PoolParams& params, const PoolPlace<typename Result::Storage>& place,
                                    Result (&results)[kDown][kAcross], int& inside) {
  constexpr int kUnrolledPlanes = Window::kPlanes * Window::kTaps <= kUnrolledTaps ? Window::kPlanes : 1;
  const int front = place.plane * Window::kStrideThrough - params.pad_front;
  int planes = 0;
#pragma unroll kUnrolledPlanes
  for (int t = 0; t < Window::kPlanes; ++t) {
    const int z = front + t * Window::kDilationThrough;
    if (!is_inside(z, params.depth)) continue;
    PoolPlace<typename Result::Storage> at = place;
    at.x += static_cast<int64_t>(z) * params.height * params.width * params.channels;
    inside += reduce_plane<kDense, Result, Window>(params, at, results);
    ++planes;
  }
  return planes;
}

// Result: how values are reduced (results.cuh). kThreads: of a block.
template <typename Result, typename Window, int kDown, int kAcross, int kThreads>
__device__ inline void pool(const PoolParams& params) {
  using T = typename Result::Storage;
  begin_early();
  const unsigned int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= params.count) return;
  const PoolPlace<T> place = place_of<T, Window::kIsVolume, Result::kWidth, kDown, kAcross>(params, i);
  Result results[kDown][kAcross];
  constexpr bool kDense = Window::kDense && Window::kWidth <= kUnrolledColumns;
  int inside = 0;
  int planes = 1;
  if constexpr (Window::kIsVolume) {
    planes = reduce_planes<kDense, Result, Window>(params, place, results, inside);
  } else {
    inside = reduce_plane<kDense, Result, Window>(params, place, results);
  }
#pragma unroll
  for (int d = 0; d < kDown; ++d) {
    const int h = place.top + d;
    if (h >= params.out_height) break;
    const int rows = taps_inside(h * Window::kStrideDown - params.pad_top, Window::kHeight, params.height);
#pragma unroll
    for (int a = 0; a < kAcross; ++a) {
      const int w = place.left + a;
      if (w >= params.out_width) break;
      if constexpr (kDense) {
        inside = planes * rows * taps_inside(w * Window::kStrideAcross - params.pad_left, Window::kWidth, params.width);
      }
      store_vector(place.y + (static_cast<int64_t>(h) * params.out_width + w) * params.channels,
                   results[d][a].value(inside, Window::kPlanes * Window::kTaps));
    }
  }
}

}  // namespace onnxopt
