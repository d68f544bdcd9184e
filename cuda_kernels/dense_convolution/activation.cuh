// Activations of a convolution, as program/convolution.py names them.
#pragma once

#include "device/approximate.cuh"
#include "device/scalar.cuh"

namespace onnxopt {

enum class ConvolutionActivation { kNone, kRelu, kSilu, kClip, kLeakyRelu, kHardswish, kPrelu };

// value: the bound of a clip, the slope of a leaky ReLU or of a channel. NaN stays NaN.
template <ConvolutionActivation kActivation>
__device__ inline float activate(float v, float value) {
  using A = ConvolutionActivation;
  if constexpr (kActivation == A::kRelu) return v < 0.0f ? 0.0f : v;
  if constexpr (kActivation == A::kSilu) return approximate::div(v, 1.0f + approximate::exp(-v));
  if constexpr (kActivation == A::kClip) return v < 0.0f ? 0.0f : v > value ? value : v;
  if constexpr (kActivation == A::kLeakyRelu || kActivation == A::kPrelu) return v < 0.0f ? v * value : v;
  if constexpr (kActivation == A::kHardswish) {
    const float gate = v * (1.0f / 6.0f) + 0.5f;
    return v * (gate < 0.0f ? 0.0f : gate > 1.0f ? 1.0f : gate);
  }
  return v;
}

}  // namespace onnxopt
