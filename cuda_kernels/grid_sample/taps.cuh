// Which pixels of an axis a coordinate takes, and by what weights, as ONNX's GridSample says it.
//
// Pixels are float32 until they are known to be inside, so no coordinate overflows. Coordinates that are not a number,
// infinite or farther than kFarthest are the first edge, and what is farther than 2^24 pixels is as far off as in ONNX
// Runtime's CPU kernel (1.31).
#pragma once

#include "device/scalar.cuh"

namespace onnxopt {

enum class GridMode { kNearest, kLinear, kCubic };
enum class GridPadding { kZeros, kBorder, kReflection };

constexpr float kFarthest = 4611686018427387904.0f;  // 2^62

constexpr int taps_of(GridMode mode) { return mode == GridMode::kNearest ? 1 : mode == GridMode::kLinear ? 2 : 4; }

// The pixel that a coordinate from -1 to 1 is, with a fraction. Never one rounding for a product and a sum: the
// nearest pixel would be another one.
template <bool kAlignCorners>
__device__ inline float grid_pixel(float coordinate, float extent) {
  const float from_start = coordinate + 1.0f;
  const float pixel =
      kAlignCorners ? from_start * 0.5f * (extent - 1.0f) : add_rounded(from_start * extent, -1.0f) * 0.5f;
  return ::fabsf(pixel) <= kFarthest ? pixel : kAlignCorners ? 0.0f : -0.5f;
}

// A pixel outside, reflected at the edges until it is inside. extent: not 0.
template <bool kAlignCorners>
__device__ inline float reflected(float pixel, float extent) {
  const float low = kAlignCorners ? 0.0f : -0.5f;
  const float high = kAlignCorners ? extent - 1.0f : extent - 0.5f;
  const bool before = pixel < low;
  if (!before && !(pixel > high)) return pixel;
  const float beyond = before ? low - pixel : pixel - high;
  const float range = high - low;
  const float times = ::truncf(beyond / range);
  const float rest = add_rounded(beyond, -(times * range));
  const bool odd = times - 2.0f * ::truncf(times * 0.5f) != 0.0f;
  return before != odd ? low + rest : high - rest;
}

template <int kCount>
struct GridTaps {
  int at[kCount];
  float weight[kCount];
  bool inside[kCount];
};

// t: the distance from the second of four pixels.
__device__ inline void cubic_weights(float t, float (&weight)[4]) {
  constexpr float kAlpha = -0.75f;
  const float before = t + 1.0f;
  const float left = 1.0f - t;
  const float after = 2.0f - t;
  weight[0] = ((kAlpha * before - 5.0f * kAlpha) * before + 8.0f * kAlpha) * before - 4.0f * kAlpha;
  weight[1] = ((kAlpha + 2.0f) * t - (kAlpha + 3.0f)) * t * t + 1.0f;
  weight[2] = ((kAlpha + 2.0f) * left - (kAlpha + 3.0f)) * left * left + 1.0f;
  weight[3] = ((kAlpha * after - 5.0f * kAlpha) * after + 8.0f * kAlpha) * after - 4.0f * kAlpha;
}

template <GridMode kMode, GridPadding kPadding, bool kAlignCorners>
__device__ inline GridTaps<taps_of(kMode)> taps_at(float coordinate, int extent) {
  constexpr int kCount = taps_of(kMode);
  const float length = static_cast<float>(extent);
  const float pixel = grid_pixel<kAlignCorners>(coordinate, length);
  GridTaps<kCount> taps;
  float first = 0.0f;
  if constexpr (kMode == GridMode::kNearest) {
    first = ::rintf(pixel);
    taps.weight[0] = 1.0f;
  } else {
    const float below = ::floorf(pixel);
    if constexpr (kMode == GridMode::kLinear) {
      first = below;
      taps.weight[0] = below + 1.0f - pixel;
      taps.weight[1] = pixel - below;
    } else {
      first = below - 1.0f;
      cubic_weights(pixel - below, taps.weight);
    }
  }
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    float at = first + static_cast<float>(k);
    if constexpr (kPadding == GridPadding::kReflection) at = reflected<kAlignCorners>(at, length);
    const bool is_inside = at >= 0.0f && at < length;
    if constexpr (kPadding == GridPadding::kZeros) {
      taps.inside[k] = is_inside;
      taps.weight[k] = is_inside ? taps.weight[k] : 0.0f;
      taps.at[k] = is_inside ? static_cast<int>(at) : 0;
    } else {
      taps.inside[k] = true;
      taps.at[k] = is_inside ? static_cast<int>(at) : at >= length ? extent - 1 : 0;
    }
  }
  return taps;
}

}  // namespace onnxopt
