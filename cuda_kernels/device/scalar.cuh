// The scalar primitives of onnxopt/program/pointwise.py, under the same names. Each exists once, for every dtype it
// takes.
#pragma once

#include "device/dtypes.cuh"

namespace onnxopt {

template <typename T>
__device__ constexpr bool is_float() {
  return false;
}
template <>
__device__ constexpr bool is_float<float>() {
  return true;
}
template <>
__device__ constexpr bool is_float<double>() {
  return true;
}

template <typename T>
struct Unsigned;
// clang-format off
template <> struct Unsigned<int8_t> { using type = uint8_t; };
template <> struct Unsigned<uint8_t> { using type = uint8_t; };
template <> struct Unsigned<int16_t> { using type = uint16_t; };
template <> struct Unsigned<uint16_t> { using type = uint16_t; };
template <> struct Unsigned<int32_t> { using type = uint32_t; };
template <> struct Unsigned<uint32_t> { using type = uint32_t; };
template <> struct Unsigned<int64_t> { using type = uint64_t; };
template <> struct Unsigned<uint64_t> { using type = uint64_t; };
// clang-format on

__device__ inline float infinity() { return __uint_as_float(0x7f800000u); }
__device__ inline float not_a_number() { return __uint_as_float(0x7fc00000u); }

// conversions
template <typename To, typename From>
__device__ inline To cast(From x) {
  return static_cast<To>(x);
}

template <typename Storage>
__device__ inline float narrow(float x) {
  return widen(Narrow<Storage>::from(x));
}

// arithmetic: integers wrap, so signed ones go through their unsigned type
template <typename T>
__device__ inline T add(T x, T y) {
  if constexpr (is_float<T>()) {
    return x + y;
  } else {
    using U = typename Unsigned<T>::type;
    return static_cast<T>(static_cast<U>(x) + static_cast<U>(y));
  }
}

template <typename T>
__device__ inline T sub(T x, T y) {
  if constexpr (is_float<T>()) {
    return x - y;
  } else {
    using U = typename Unsigned<T>::type;
    return static_cast<T>(static_cast<U>(x) - static_cast<U>(y));
  }
}

template <typename T>
__device__ inline T mul(T x, T y) {
  if constexpr (is_float<T>()) {
    return x * y;
  } else {
    return static_cast<T>(static_cast<uint64_t>(x) * static_cast<uint64_t>(y));
  }
}

// On integers: x / 0 is 0, the lowest value by -1 wraps. The CPU's kernel reports a division by zero as an error, as
// ONNX Runtime's CPU operators do; its CUDA operators leave the result open.
template <typename T>
__device__ inline T div(T x, T y) {
  if constexpr (is_float<T>()) {
    return x / y;
  } else {
    if (y == T(0)) return T(0);
    if constexpr (T(-1) < T(0)) {
      if (y == T(-1)) return sub(T(0), x);
    }
    return static_cast<T>(x / y);
  }
}

// 1 / x, correctly rounded save where the result is subnormal, for an x that is not: as the compiler's own division,
// but without its branch for all other cases, which keeps elements from being worked on side by side.
__device__ inline float reciprocal_of_normal(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  const float off = ::fmaf(-x, y, 1.0f);  // not a number where x is 0, infinite or not a number
  return off == off ? ::fmaf(y, off, y) : y;
#else
  return 1.0f / x;
#endif
}

// x / y for a finite y from 1 on: correctly rounded save where the result is subnormal, without a branch, and with one
// reciprocal for all elements that are divided by y.
__device__ inline float divide_by_sum(float x, float y) {
#ifdef __CUDA_ARCH__
  const float inverse = reciprocal_of_normal(y);
  const float quotient = x * inverse;
  const float off = ::fmaf(-quotient, y, x);  // not a number where x is infinite
  return off == off ? ::fmaf(off, inverse, quotient) : quotient;
#else
  return x / y;
#endif
}

template <typename T>
__device__ inline T neg(T x) {
  if constexpr (is_float<T>()) {
    return -x;
  } else {
    return sub(T(0), x);
  }
}

template <typename T>
__device__ inline T abs(T x) {
  if constexpr (is_float<T>()) {
    return ::fabs(x);
  } else {
    return x < T(0) ? neg(x) : x;
  }
}

template <typename T>
__device__ inline T sign(T x) {
  if constexpr (is_float<T>()) {
    if (x != x) return x;
  }
  return static_cast<T>((T(0) < x) - (x < T(0)));
}

template <typename T>
__device__ inline T min(T x, T y) {
  return x < y || x != x ? x : y;
}

template <typename T>
__device__ inline T max(T x, T y) {
  return y < x || x != x ? x : y;
}

#if __CUDA_ARCH__ >= 800
__device__ inline float min(float x, float y) {
  float z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

__device__ inline float max(float x, float y) {
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
#endif

__device__ __noinline__ float fmod(float x, float y) { return ::fmodf(x, y); }
__device__ __noinline__ double fmod(double x, double y) { return ::fmod(x, y); }

// On integers x mod 0 is x, and the lowest value mod -1 is 0.
template <typename T>
__device__ inline T fmod(T x, T y) {
  return sub(x, mul(div(x, y), y));
}

template <typename T>
__device__ inline T mod(T x, T y) {
  const T remainder = fmod(x, y);
  return remainder != T(0) && ((remainder < T(0)) != (y < T(0))) ? add(remainder, y) : remainder;
}

__device__ __noinline__ float pow(float x, float y) { return ::powf(x, y); }
__device__ __noinline__ double pow(double x, double y) { return ::pow(x, y); }

// Integer powers by squaring; a negative exponent gives the truncated reciprocal, as casting the real power would.
template <typename T>
__device__ inline T pow(T x, T y) {
  if (y < T(0)) return x == T(1) ? T(1) : x == T(-1) ? (y & T(1) ? T(-1) : T(1)) : T(0);
  T result = T(1);
  for (; y > T(0); y = static_cast<T>(y >> 1)) {
    if (y & T(1)) result = mul(result, x);
    x = mul(x, x);
  }
  return result;
}

// float functions; those with a long slow path are calls, which keeps the code of a vector of them small
#define ONNXOPT_FLOAT_FUNCTION(name, single)                    \
  __device__ inline float name(float x) { return ::single(x); } \
  __device__ __noinline__ double name(double x) { return ::name(x); }
#define ONNXOPT_LONG_FLOAT_FUNCTION(name, single)                     \
  __device__ __noinline__ float name(float x) { return ::single(x); } \
  __device__ __noinline__ double name(double x) { return ::name(x); }
ONNXOPT_FLOAT_FUNCTION(sqrt, sqrtf)
ONNXOPT_FLOAT_FUNCTION(exp, expf)
ONNXOPT_FLOAT_FUNCTION(expm1, expm1f)
ONNXOPT_FLOAT_FUNCTION(log, logf)
ONNXOPT_FLOAT_FUNCTION(log1p, log1pf)
ONNXOPT_FLOAT_FUNCTION(erf, erff)
ONNXOPT_FLOAT_FUNCTION(tanh, tanhf)
ONNXOPT_FLOAT_FUNCTION(floor, floorf)
ONNXOPT_FLOAT_FUNCTION(ceil, ceilf)
ONNXOPT_LONG_FLOAT_FUNCTION(sin, sinf)
ONNXOPT_LONG_FLOAT_FUNCTION(cos, cosf)
ONNXOPT_LONG_FLOAT_FUNCTION(tan, tanf)
ONNXOPT_LONG_FLOAT_FUNCTION(asin, asinf)
ONNXOPT_LONG_FLOAT_FUNCTION(acos, acosf)
ONNXOPT_LONG_FLOAT_FUNCTION(atan, atanf)
ONNXOPT_LONG_FLOAT_FUNCTION(sinh, sinhf)
ONNXOPT_LONG_FLOAT_FUNCTION(cosh, coshf)
ONNXOPT_LONG_FLOAT_FUNCTION(asinh, asinhf)
ONNXOPT_LONG_FLOAT_FUNCTION(acosh, acoshf)
ONNXOPT_LONG_FLOAT_FUNCTION(atanh, atanhf)
#undef ONNXOPT_FLOAT_FUNCTION
#undef ONNXOPT_LONG_FLOAT_FUNCTION

__device__ inline float round(float x) { return ::rintf(x); }
__device__ inline double round(double x) { return ::rint(x); }

// predicates
template <typename T>
__device__ inline bool isnan(T x) {
  return x != x;
}

template <typename T>
__device__ inline bool isinf(T x) {
  return abs(x) == static_cast<T>(infinity());
}

template <typename T>
__device__ inline bool lt(T x, T y) {
  return x < y;
}

template <typename T>
__device__ inline bool le(T x, T y) {
  return x <= y;
}

template <typename T>
__device__ inline bool eq(T x, T y) {
  return x == y;
}

// logic; C++ keeps the plain names for itself
__device__ inline bool logic_not(bool x) { return !x; }
__device__ inline bool logic_and(bool x, bool y) { return x && y; }
__device__ inline bool logic_or(bool x, bool y) { return x || y; }
__device__ inline bool logic_xor(bool x, bool y) { return x != y; }

// bits
template <typename T>
__device__ inline T bit_not(T x) {
  return static_cast<T>(~x);
}

template <typename T>
__device__ inline T bit_and(T x, T y) {
  return static_cast<T>(x & y);
}

template <typename T>
__device__ inline T bit_or(T x, T y) {
  return static_cast<T>(x | y);
}

template <typename T>
__device__ inline T bit_xor(T x, T y) {
  return static_cast<T>(x ^ y);
}

template <typename T>
__device__ inline T shift_left(T x, T y) {
  return static_cast<uint64_t>(y) < 8 * sizeof(T) ? static_cast<T>(x << y) : T(0);
}

template <typename T>
__device__ inline T shift_right(T x, T y) {
  return static_cast<uint64_t>(y) < 8 * sizeof(T) ? static_cast<T>(x >> y) : T(0);
}

template <typename T>
__device__ inline T select(bool condition, T if_true, T if_false) {
  return condition ? if_true : if_false;
}

constexpr float kRounds = 12582912.0f;  // 1.5 * 2^23: the last bit of a sum with it is worth 1

// x / y for a constant y between 2^-60 and 2^60 whose significand is not all ones; inverse: 1 / y, rounded. Correctly
// rounded from 2^-40 on, without a branch; what is smaller may be off by an ulp.
__device__ inline float divide_by_constant(float x, float y, float inverse) {
  const float quotient = x * inverse;
  const float closer = ::fmaf(::fmaf(-quotient, y, x), inverse, quotient);
  return ::copysignf(closer == closer ? closer : quotient, quotient);  // it may be infinite, or -0
}

// x + y, which does not become part of a product that x may be.
__device__ inline float add_rounded(float x, float y) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(x, y);
#else
  return x + y;
#endif
}

// x rounded half to even where |x| < 2^22, never to -0; what is farther from 0 stays that far. No conversion: a
// multiprocessor has few units for those.
__device__ inline float round_to_code(float x) { return add_rounded(x, kRounds) - kRounds; }

// A whole number that `Code`, of 8 or 16 bits, holds.
template <typename Code>
__device__ inline Code code_of(float x) {
  return static_cast<Code>(__float_as_uint(add(x, kRounds)));
}

// x / n for a whole number n from 1 to 2^24: what rounding leaves of the quotient by one reciprocal is added to it.
__device__ inline float div_by_count(float x, float n) {
  const float reciprocal = 1.0f / n;
  const float y = x * reciprocal;
  const float closer = ::fmaf(::fmaf(-y, n, x), reciprocal, y);
  return closer == closer ? closer : y;  // y may be infinite
}

// 1 / sqrt(x), to an ulp.
__device__ inline float inverse_sqrt(float x) {
  const float y = ::rsqrtf(x);
  const float closer = ::fmaf(::fmaf(-x * y, y, 1.0f), 0.5f * y, y);
  return closer == closer ? closer : y;  // of 0 and infinity
}

}  // namespace onnxopt
