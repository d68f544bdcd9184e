// Movers and pools of NHWC tensors: the stem's change of layout, max pooling, nearest resizing.
#pragma once

#include "device/dtypes.cuh"
#include "load_or_zero.cuh"
#include "device/vector.cuh"

namespace onnxopt {

// [batch, kFrom, pixels] to [batch, pixels, kTo], the channels behind kFrom zero. A thread moves kPixels neighbours.
template <typename T, int kFrom, int kTo, int kPixels>
__device__ inline void pad_channels(const T* x, T* y, unsigned pixels) {
  const unsigned first = (blockIdx.x * blockDim.x + threadIdx.x) * kPixels;
  if (first >= pixels) return;
  const T* from = x + static_cast<uint64_t>(blockIdx.y) * kFrom * pixels + first;
  T* to = y + (static_cast<uint64_t>(blockIdx.y) * pixels + first) * kTo;
  Vector<T, kPixels> plane[kFrom];
#pragma unroll
  for (int c = 0; c < kFrom; ++c) plane[c] = load_vector<T, kPixels>(from + c * pixels);
#pragma unroll
  for (int p = 0; p < kPixels; ++p) {
    Vector<T, kTo> pixel = splat<T, kTo>(T{});
#pragma unroll
    for (int c = 0; c < kFrom; ++c) pixel.at[c] = plane[c].at[p];
    store_vector(to + p * kTo, pixel);
  }
}

// The larger of two pairs; not a number wins, as in ONNX Runtime.
__device__ inline uint32_t max_pair(uint32_t x, uint32_t y, float16) {
  uint32_t z;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  return z;
}
__device__ inline uint32_t max_pair(uint32_t x, uint32_t y, bfloat16) {
  uint32_t z;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  return z;
}

struct PoolShape {
  int height;
  int width;
  int channels;
  int out_height;
  int out_width;
  int pad_top;
  int pad_left;
};

// Max over kSide x kSide, of 8 channels and kDown x kAcross outputs a thread; channels are a multiple of 8. What lies
// in the padding is taken from the nearest pixel: the pads are smaller than the window, so that pixel is in it.
template <typename T, int kSide, int kStride, int kDown, int kAcross>
__device__ inline void max_pool(const T* x, T* y, const PoolShape& s) {
  const unsigned groups = s.channels / 8;
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned across = i / groups;
  const int channel = (i - across * groups) * 8;
  const int left = across * kAcross;
  const int top = blockIdx.y * kDown;
  if (left >= s.out_width) return;
  constexpr int kRows = (kDown - 1) * kStride + kSide;
  constexpr int kColumns = (kAcross - 1) * kStride + kSide;
  const T* image = x + static_cast<uint64_t>(blockIdx.z) * s.height * s.width * s.channels + channel;
  T* out = y + static_cast<uint64_t>(blockIdx.z) * s.out_height * s.out_width * s.channels + channel;
  Vector<T, 8> best[kDown][kAcross];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int h = min(max(top * kStride - s.pad_top + r, 0), s.height - 1);
    Vector<T, 8> row[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int w = min(max(left * kStride - s.pad_left + c, 0), s.width - 1);
      row[c] = load_vector<T, 8>(image + (static_cast<int64_t>(h) * s.width + w) * s.channels);
    }
#pragma unroll
    for (int a = 0; a < kAcross; ++a) {
#pragma unroll
      for (int d = 0; d < kDown; ++d) {
        if (r < d * kStride || r >= d * kStride + kSide) continue;
#pragma unroll
        for (int c = 0; c < kSide; ++c) {
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            const uint32_t next = word(row[a * kStride + c], k);
            word(best[d][a], k) = r == d * kStride && c == 0 ? next : max_pair(word(best[d][a], k), next, T{});
          }
        }
      }
    }
  }
#pragma unroll
  for (int d = 0; d < kDown; ++d) {
#pragma unroll
    for (int a = 0; a < kAcross; ++a) {
      if (top + d < s.out_height && left + a < s.out_width) {
        store_vector(out + (static_cast<int64_t>(top + d) * s.out_width + left + a) * s.channels, best[d][a]);
      }
    }
  }
}

// Nearest, both sides times kScale: every input vector is read once and written kScale * kScale times. to_pitch: the
// channels of a pixel of y, which may be a slice of a wider tensor.
template <typename T, int kScale>
__device__ inline void resize_nearest(const T* x, T* y, unsigned vectors, unsigned groups, unsigned width,
                                      unsigned to_pitch) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= vectors) return;
  const unsigned pixel = i / groups;
  const unsigned row = pixel / width;  // of all images
  const unsigned column = pixel - row * width;
  const auto value = load_vector<T, 8>(x + static_cast<uint64_t>(i) * 8);
  T* corner = y + (static_cast<uint64_t>(row) * kScale * width * kScale + column * kScale) * to_pitch +
              (i - pixel * groups) * 8;
#pragma unroll
  for (int r = 0; r < kScale; ++r) {
#pragma unroll
    for (int c = 0; c < kScale; ++c)
      store_vector(corner + (static_cast<uint64_t>(r) * width * kScale + c) * to_pitch, value);
  }
}

// Rows of a product from a 3x3 (kSide) map: [batch, out pixels, kSide * kSide, channels], zeros in the padding.
template <typename T, int kSide>
__device__ inline void gather_columns(const T* x, T* y, const PoolShape& s, int stride) {
  const unsigned groups = s.channels / 8;
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned per_image = static_cast<unsigned>(s.out_height) * s.out_width * kSide * kSide * groups;
  if (i >= per_image) return;
  const unsigned tap_pixel = i / groups;
  const unsigned pixel = tap_pixel / (kSide * kSide);
  const int tap = tap_pixel - pixel * (kSide * kSide);
  const int oh = pixel / s.out_width;
  const int ow = pixel - oh * s.out_width;
  const int h = oh * stride - s.pad_top + tap / kSide;
  const int w = ow * stride - s.pad_left + tap % kSide;
  const bool inside = h >= 0 && h < s.height && w >= 0 && w < s.width;
  const T* image = x + static_cast<uint64_t>(blockIdx.z) * s.height * s.width * s.channels;
  const auto value = load_or_zero<T, 8>(
      image + (static_cast<int64_t>(h) * s.width + w) * s.channels + (i - tap_pixel * groups) * 8, inside);
  store_vector(y + (static_cast<uint64_t>(blockIdx.z) * per_image + i) * 8, value);
}

}  // namespace onnxopt
