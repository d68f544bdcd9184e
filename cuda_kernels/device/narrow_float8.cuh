// Floats as 8-bit codes. Apart from the other dtypes, because only this tells compute capability 8.9 from 8.6: kernels
// without codes compile once for both.
#pragma once

#include "device/dtypes.cuh"

namespace onnxopt {

// Saturates: what is beyond 448 becomes 448, infinities too.
template <>
struct Narrow<float8e4m3fn> {
  __device__ static float8e4m3fn from(float x) {
#if __CUDA_ARCH__ >= 890
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
    return {static_cast<uint8_t>(pair)};
#else
    const uint32_t bits = __float_as_uint(x);
    const uint32_t magnitude = bits & 0x7fffffffu;
    // Below 2^-6 the sum with 2^14 rounds at the place where a subnormal code ends.
    const uint32_t subnormal = __float_as_uint(__uint_as_float(magnitude) + 16384.0f) - 0x46800000u;
    const uint32_t normal = (magnitude - 0x3c000000u + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
    const uint32_t finite = magnitude < 0x3c800000u ? subnormal : normal;
    const uint32_t large = magnitude > 0x7f800000u ? 0x7fu : 0x7eu;
    return {static_cast<uint8_t>((bits >> 24 & 0x80u) | (magnitude >= 0x43e00000u ? large : finite))};
#endif
  }
};

__device__ inline uint32_t word_of(uint16_t low, uint16_t high) { return low | static_cast<uint32_t>(high) << 16; }

// Two codes, the first in the lower byte.
__device__ inline uint16_t codes_of(float first, float second) {
#if __CUDA_ARCH__ >= 890
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
  return pair;
#else
  const uint32_t high = Narrow<float8e4m3fn>::from(second).bits;
  return static_cast<uint16_t>(Narrow<float8e4m3fn>::from(first).bits | high << 8);
#endif
}

template <>
struct NarrowFour<float8e4m3fn> {
  static constexpr bool kWord = true;
  __device__ static uint32_t from(float x0, float x1, float x2, float x3) {
    return word_of(codes_of(x0, x1), codes_of(x2, x3));
  }
};

// The code of 2^kExponent x, where x is first rounded to float16. -14 <= kExponent <= 15.
template <int kExponent>
struct float8e4m3fn_of_half {
  uint8_t bits;
};

template <int kExponent>
__device__ float widen(float8e4m3fn_of_half<kExponent>);  // nothing reads it: for its compute dtype

template <int kExponent>
struct Narrow<float8e4m3fn_of_half<kExponent>> {
  __device__ static float8e4m3fn_of_half<kExponent> from(float x) {
    constexpr float kFactor = kExponent < 0 ? 1.0f / (1 << -kExponent) : 1 << kExponent;
    return {Narrow<float8e4m3fn>::from(widen(Narrow<float16>::from(x)) * kFactor).bits};
  }
};

// The product is exact, or infinite and saturates, or is a subnormal float16, whose code is 0 either way.
template <int kExponent>
struct NarrowFour<float8e4m3fn_of_half<kExponent>> {
  static constexpr bool kWord = true;
  __device__ static uint32_t from(float x0, float x1, float x2, float x3) {
    return word_of(codes_of_halves(x0, x1), codes_of_halves(x2, x3));
  }

 private:
  __device__ static uint16_t codes_of_halves(float first, float second) {
#if __CUDA_ARCH__ >= 890
    constexpr uint32_t kFactor = (kExponent + 15) * 0x04000400u;
    uint32_t halves;
    uint16_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(halves) : "f"(second), "f"(first));
    asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(halves) : "r"(kFactor));
    asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(pair) : "r"(halves));
    return pair;
#else
    using Code = Narrow<float8e4m3fn_of_half<kExponent>>;
    const uint32_t high = Code::from(second).bits;
    return static_cast<uint16_t>(Code::from(first).bits | high << 8);
#endif
  }
};

// Two codes as float16, which holds them exactly, the first in the lower half of both.
__device__ inline uint32_t halves_of(uint16_t codes) {
#if __CUDA_ARCH__ >= 890
  uint32_t pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(codes));
  return pair;
#else
  const uint32_t low = ptx::float_to_half(widen(float8e4m3fn{static_cast<uint8_t>(codes)}));
  const uint32_t high = ptx::float_to_half(widen(float8e4m3fn{static_cast<uint8_t>(codes >> 8)}));
  return low | high << 16;
#endif
}

// The numbers of two codes, the first in the lower byte.
__device__ inline void widen_pair(uint16_t codes, float& first, float& second) {
#if __CUDA_ARCH__ >= 890
  uint32_t pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(codes));
  first = ptx::half_to_float(static_cast<uint16_t>(pair));
  second = ptx::half_to_float(static_cast<uint16_t>(pair >> 16));
#else
  first = widen(float8e4m3fn{static_cast<uint8_t>(codes)});
  second = widen(float8e4m3fn{static_cast<uint8_t>(codes >> 8)});
#endif
}

}  // namespace onnxopt
