// Programs in front of and behind a convolution. channel(c) reads once what the program needs of a channel; the sum of
// a program behind starts from start(), so that a bias costs no addition.
#pragma once

#include "device/approximate.cuh"
#include "device/dtypes.cuh"

namespace onnxopt {

struct Same {
  static constexpr bool kNothing = true;
  struct Of {};
  __device__ Of channel(int) const { return {}; }
  __device__ static float start(Of) { return 0.0f; }
  __device__ static float apply(float x, Of) { return x; }
  __device__ static float finish(float x, Of) { return x; }
};

struct Relu {
  __device__ static float apply(float x) { return ::fmaxf(x, 0.0f); }
};
struct Relu6 {
  __device__ static float apply(float x) { return ::fminf(::fmaxf(x, 0.0f), 6.0f); }
};
struct Silu {
  __device__ static float apply(float x) { return x * approximate::reciprocal_of_normal(1.0f + approximate::exp(-x)); }
};
struct Gelu {
  __device__ static float apply(float x) { return 0.5f * x * (1.0f + approximate::erf_plus(x * 0.707106781f)); }
};
struct Linear {
  __device__ static float apply(float x) { return x; }
};

template <typename T, typename F>
struct Biased {
  static constexpr bool kNothing = false;
  const T* bias;
  using Of = float;
  __device__ float channel(int c) const { return widen(bias[c]); }
  __device__ static float start(float b) { return b; }
  __device__ static float apply(float x, float b) { return F::apply(x + b); }  // in front
  __device__ static float finish(float x, float) { return F::apply(x); }       // behind, of a sum from start()
};

}  // namespace onnxopt
