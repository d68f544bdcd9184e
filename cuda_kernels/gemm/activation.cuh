// What the sums of a product go through last.
#pragma once

#include "device/approximate.cuh"
#include "device/scalar.cuh"

namespace onnxopt {

enum class Activation { kNone, kRelu, kGelu, kGeluTanh, kSilu };

// kExact: of results in float32 whose product keeps all bits; else of 16 bits or of TF32.
template <Activation kActivation, bool kExact = false>
__device__ inline float activate(float x) {
  if constexpr (kActivation == Activation::kRelu) return x < 0.0f ? 0.0f : x;  // keeps NaN
  if constexpr (kActivation == Activation::kGelu && kExact) return x * 0.5f * (onnxopt::erf(x * 0.707106781f) + 1.0f);
  if constexpr (kActivation == Activation::kGelu) return approximate::gelu(x, 0.707106781f);
  if constexpr (kActivation == Activation::kGeluTanh) {
    return 0.5f * x * (1.0f + tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
  }
  if constexpr (kActivation == Activation::kSilu && kExact) return x / (1.0f + ::expf(-x));
  if constexpr (kActivation == Activation::kSilu) return approximate::div(x, 1.0f + approximate::exp(-x));
  return x;
}

}  // namespace onnxopt
