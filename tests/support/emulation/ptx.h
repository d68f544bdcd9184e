// What device/ptx.cuh has in PTX. What is approximate there is exact here.
#pragma once

#include <cmath>

#include "cuda.h"

namespace onnxopt {
namespace ptx {

inline float half_to_float(unsigned short half) {
  const unsigned sign = static_cast<unsigned>(half & 0x8000u) << 16;
  const unsigned exponent = half >> 10 & 31u;
  const unsigned fraction = half & 1023u;
  if (exponent == 31) return bits<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent == 0) return bits<float>(bits<unsigned>(static_cast<float>(fraction) * 0x1p-24f) | sign);
  return bits<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

inline unsigned short float_to_half(float x) {
  const unsigned sign = bits<unsigned>(x) >> 16 & 0x8000u;
  const unsigned magnitude = bits<unsigned>(x) & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fffu;
  if (magnitude >= 0x477ff000u) return static_cast<unsigned short>(sign | 0x7c00u);  // from 65520 on
  if (magnitude < 0x38800000u) {                                                     // below 2^-14, in units of 2^-24
    return static_cast<unsigned short>(sign | static_cast<unsigned>(std::nearbyint(std::fabs(x) * 0x1p24f)));
  }
  const unsigned rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<unsigned short>(sign | (rounded - 0x38000000u) >> 13);
}

inline float exp2(float x) { return std::exp2(x); }
inline float div(float x, float y) { return x / y; }
inline float reciprocal(float x) { return 1.0f / x; }
inline float reciprocal_of_normal(float x) { return 1.0f / x; }
inline float sqrt(float x) { return std::sqrt(x); }

}  // namespace ptx
}  // namespace onnxopt

inline float __log2f(float x) { return std::log2(x); }
