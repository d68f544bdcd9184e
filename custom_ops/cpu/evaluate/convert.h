// float16, bfloat16 and float8e4m3fn to float32 and back, to nearest even.
#pragma once

#if defined(__F16C__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "cpu/evaluate/loops.h"

namespace onnxopt::ONNXOPT_TARGET {

inline float FromBits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

inline uint32_t ToBits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}

struct Bfloat16 {
  static float Widen(uint16_t bits) { return FromBits(static_cast<uint32_t>(bits) << 16U); }
  static uint16_t Narrow(float x) {
    const uint32_t bits = ToBits(x);
    const uint32_t rounded = (bits + 0x7fffU + (bits >> 16U & 1U)) >> 16U;
    return static_cast<uint16_t>(x != x ? 0x7fffU : rounded);
  }
};

// Integer and float arithmetic only, so that it vectorizes without an instruction for it.
struct Float16 {
  static float Widen(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000U) << 16U;
    const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fffU) << 13U;
    // Multiplying by 2^112 moves the exponent's bias and normalizes subnormals; infinities and NaNs need theirs set.
    const float scaled = FromBits(magnitude) * FromBits(0x77800000U);
    const uint32_t special = magnitude >= 0x0f800000U ? 0x7f800000U : 0U;
    return FromBits(ToBits(scaled) | special | sign);
  }
  static uint16_t Narrow(float x) {
    const uint32_t bits = ToBits(x);
    const uint32_t sign = bits >> 16U & 0x8000U;
    const uint32_t magnitude = bits & 0x7fffffffU;
    // Below 2^-14 the sum with 0.5 rounds at the place where a subnormal half ends.
    const uint32_t subnormal = ToBits(FromBits(magnitude) + 0.5F) - 0x3f000000U;
    const uint32_t normal = (magnitude - 0x38000000U + 0xfffU + (magnitude >> 13U & 1U)) >> 13U;
    const uint32_t finite = magnitude < 0x38800000U ? subnormal : normal;
    const uint32_t infinite = magnitude > 0x7f800000U ? 0x7e00U : 0x7c00U;
    return static_cast<uint16_t>(sign | (magnitude >= 0x477ff000U ? infinite : finite));
  }
};

// 4 bits of exponent, 3 of fraction, no infinity. Narrowing saturates at 448, infinities too.
struct Float8E4M3 {
  static float Widen(uint8_t code) {
    const uint32_t sign = static_cast<uint32_t>(code & 0x80U) << 24U;
    // Multiplying by 2^120 moves the exponent's bias and normalizes subnormals.
    const float scaled = FromBits(static_cast<uint32_t>(code & 0x7fU) << 20U) * FromBits(0x7b800000U);
    const uint32_t nan = (code & 0x7fU) == 0x7fU ? 0x7fc00000U : 0U;
    return FromBits(ToBits(scaled) | nan | sign);
  }
  static uint8_t Narrow(float x) {
    const uint32_t bits = ToBits(x);
    const uint32_t sign = bits >> 24U & 0x80U;
    const uint32_t magnitude = bits & 0x7fffffffU;
    // Below 2^-6 the sum with 2^14 rounds at the place where a subnormal code ends.
    const uint32_t subnormal = ToBits(FromBits(magnitude) + 16384.0F) - 0x46800000U;
    const uint32_t normal = (magnitude - 0x3c000000U + 0x7ffffU + (magnitude >> 20U & 1U)) >> 20U;
    const uint32_t finite = magnitude < 0x3c800000U ? subnormal : normal;
    const uint32_t large = magnitude > 0x7f800000U ? 0x7fU : 0x7eU;
    return static_cast<uint8_t>(sign | (magnitude >= 0x43e00000U ? large : finite));
  }
};

// Blocks of 8 with the instruction set's own conversion, where it has one.
struct HalfBlock {
#if defined(__F16C__)
  static constexpr size_t kWidth = 8;
  static void Widen(const uint16_t* from, float* to) {
    _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }
  static void Narrow(const float* from, uint16_t* to) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), halves);
  }
  static void Round(const float* from, float* to) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_ps(to, _mm256_cvtph_ps(halves));
  }
#elif defined(__aarch64__)
  static constexpr size_t kWidth = 4;
  static void Widen(const uint16_t* from, float* to) {
    vst1q_f32(to, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from))));
  }
  static void Narrow(const float* from, uint16_t* to) {
    vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(from))));
  }
  static void Round(const float* from, float* to) { vst1q_f32(to, vcvt_f32_f16(vcvt_f16_f32(vld1q_f32(from)))); }
#else
  static constexpr size_t kWidth = 1;
  static void Widen(const uint16_t* from, float* to) { *to = Float16::Widen(*from); }
  static void Narrow(const float* from, uint16_t* to) { *to = Float16::Narrow(*from); }
  static void Round(const float* from, float* to) { *to = Float16::Widen(Float16::Narrow(*from)); }
#endif
};

inline void WidenFloat16(void* out, const void* a, const void*, const void*, size_t n) {
  float* __restrict r = static_cast<float*>(out);
  const uint16_t* __restrict x = static_cast<const uint16_t*>(a);
  size_t i = 0;
  for (; i + HalfBlock::kWidth <= n; i += HalfBlock::kWidth) HalfBlock::Widen(x + i, r + i);
  for (; i < n; ++i) r[i] = Float16::Widen(x[i]);
}

inline void NarrowFloat16(void* out, const void* a, const void*, const void*, size_t n) {
  uint16_t* __restrict r = static_cast<uint16_t*>(out);
  const float* __restrict x = static_cast<const float*>(a);
  size_t i = 0;
  for (; i + HalfBlock::kWidth <= n; i += HalfBlock::kWidth) HalfBlock::Narrow(x + i, r + i);
  for (; i < n; ++i) r[i] = Float16::Narrow(x[i]);
}

inline void RoundFloat16(void* out, const void* a, const void*, const void*, size_t n) {
  float* __restrict r = static_cast<float*>(out);
  const float* __restrict x = static_cast<const float*>(a);
  size_t i = 0;
  for (; i + HalfBlock::kWidth <= n; i += HalfBlock::kWidth) HalfBlock::Round(x + i, r + i);
  for (; i < n; ++i) r[i] = Float16::Widen(Float16::Narrow(x[i]));
}

inline void WidenBfloat16(void* out, const void* a, const void*, const void*, size_t n) {
  float* __restrict r = static_cast<float*>(out);
  const uint16_t* __restrict x = static_cast<const uint16_t*>(a);
  for (size_t i = 0; i < n; ++i) r[i] = Bfloat16::Widen(x[i]);
}

inline void NarrowBfloat16(void* out, const void* a, const void*, const void*, size_t n) {
  uint16_t* __restrict r = static_cast<uint16_t*>(out);
  const float* __restrict x = static_cast<const float*>(a);
  for (size_t i = 0; i < n; ++i) r[i] = Bfloat16::Narrow(x[i]);
}

inline void RoundBfloat16(void* out, const void* a, const void*, const void*, size_t n) {
  float* __restrict r = static_cast<float*>(out);
  const float* __restrict x = static_cast<const float*>(a);
  for (size_t i = 0; i < n; ++i) r[i] = Bfloat16::Widen(Bfloat16::Narrow(x[i]));
}

inline void WidenFloat8(void* out, const void* a, const void*, const void*, size_t n) {
  float* __restrict r = static_cast<float*>(out);
  const uint8_t* __restrict x = static_cast<const uint8_t*>(a);
  for (size_t i = 0; i < n; ++i) r[i] = Float8E4M3::Widen(x[i]);
}

inline void NarrowFloat8(void* out, const void* a, const void*, const void*, size_t n) {
  uint8_t* __restrict r = static_cast<uint8_t*>(out);
  const float* __restrict x = static_cast<const float*>(a);
  for (size_t i = 0; i < n; ++i) r[i] = Float8E4M3::Narrow(x[i]);
}

inline void RoundFloat8(void* out, const void* a, const void*, const void*, size_t n) {
  float* __restrict r = static_cast<float*>(out);
  const float* __restrict x = static_cast<const float*>(a);
  for (size_t i = 0; i < n; ++i) r[i] = Float8E4M3::Widen(Float8E4M3::Narrow(x[i]));
}

}  // namespace onnxopt::ONNXOPT_TARGET
