// Storage dtypes and their conversion to and from the compute dtype. Arithmetic on 16-bit floats runs in float.
#pragma once

#include "device/ptx.cuh"

namespace onnxopt {

using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;

struct float16 {
  uint16_t bits;
};

struct bfloat16 {
  uint16_t bits;
};

// 4 bits of exponent, 3 of fraction, no infinity.
struct float8e4m3fn {
  uint8_t bits;
};

// widen: storage to compute dtype, exact.
template <typename T>
__device__ inline T widen(T x) {
  return x;
}

__device__ inline float widen(float16 x) { return ptx::half_to_float(x.bits); }

__device__ inline float widen(bfloat16 x) { return __uint_as_float(static_cast<uint32_t>(x.bits) << 16); }

// As float16, a code's bits are 2^-8 of its number.
__device__ inline float widen(float8e4m3fn x) {
  const uint32_t magnitude = x.bits & 0x7fu;
  const float scaled = ptx::half_to_float(static_cast<uint16_t>((x.bits & 0x80u) << 8 | magnitude << 7));
  return magnitude == 0x7fu ? __uint_as_float(0x7fc00000u) : scaled * 256.0f;
}

template <typename T>
struct Compute {
  using type = decltype(widen(T()));
};

// narrow: compute to storage dtype, to nearest even.
template <typename Storage>
struct Narrow {
  __device__ static Storage from(Storage x) { return x; }
};

template <>
struct Narrow<float16> {
  __device__ static float16 from(float x) { return {ptx::float_to_half(x)}; }
};

template <>
struct Narrow<bfloat16> {
  __device__ static bfloat16 from(float x) {
    bfloat16 y;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
    const uint32_t bits = __float_as_uint(x);
    const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    y.bits = static_cast<uint16_t>(x != x ? 0x7fffu : rounded >> 16);
#endif
    return y;
  }
};

// Whether four neighbours are stored as one word, and how: `from` of four compute values.
template <typename Storage>
struct NarrowFour {
  static constexpr bool kWord = false;
};

}  // namespace onnxopt
