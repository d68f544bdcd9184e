// Faster forms of the costly primitives for programs whose float operands and results are all stored in 16 bits. By
// their construction the relative error stays below 2^-15 (a sixteenth of a float16 ulp) where the result is a normal
// 16-bit number, so that storing the result, not computing it, decides its accuracy. Exceptions: log within 2^-8 of 1
// is good to 2^-22 absolute, gelu to 2^-26 where its result is below 2^-18, and what would be subnormal in float32 may
// become 0. Infinities and NaN are kept.
// tests/program/test_operators.py compares the stored results with the reference evaluator in float64 on a GPU.
#pragma once

#include "device/ptx.cuh"
#include "device/scalar.cuh"

namespace onnxopt {
namespace approximate {

__device__ inline float exp2(float x) { return ptx::exp2(x); }

__device__ inline float exp(float x) { return exp2(x * 1.44269504f); }

__device__ inline float div(float x, float y) { return ptx::div(x, y); }

__device__ inline float reciprocal(float x) { return ptx::reciprocal(x); }

__device__ inline float log(float x) { return __log2f(x) * 0.693147181f; }

// numerator / x for a constant numerator
__device__ inline float divide_constant(float numerator, float x) { return numerator * reciprocal(x); }

__device__ inline float sqrt(float x) { return ptx::sqrt(x); }

// Subnormal arguments and results count as 0.
__device__ inline float reciprocal_of_normal(float x) { return ptx::reciprocal_of_normal(x); }

// 1 - 2 / (exp(2|x|) + 1) cancels near 0, where the Taylor series takes over.
__device__ inline float tanh(float x) {
  const float t = ::fabsf(x);
  const float large = 1.0f - 2.0f * reciprocal_of_normal(exp2(t * 2.88539008f) + 1.0f);
  const float s = x * x;
  const float small = x + x * s * (-0.333333333f + s * (0.133333333f + s * -0.0539682540f));
  return t < 0.25f ? small : ::copysignf(large, x);
}

// sin(x - turns pi), which is at most pi / 2 away from 0. The hardware's sine has an absolute error of 2^-20; near 0
// the Taylor series keeps the relative one small. pi comes in two parts, so that the difference is exact to |x| = 2^16.
__device__ inline float sin_from(float x, float turns) {
  const float r = ::fmaf(turns, 8.74227766e-08f, ::fmaf(turns, -3.14159274f, x));
  const float s = r * r;
  const float small = r + r * s * (-0.166666667f + s * 0.00833333333f);
  return ::fabsf(r) < 0.25f ? small : __sinf(r);
}

__device__ inline float negate_if_odd(float y, float n) {
  return __int_as_float(__float_as_int(y) ^ (static_cast<int>(n) << 31));
}

__device__ inline float sin(float x) {
  if (!(::fabsf(x) <= 65536.0f)) return onnxopt::sin(x);
  const float n = ::rintf(x * 0.318309886f);
  return negate_if_odd(sin_from(x, n), n);
}

__device__ inline float cos(float x) {
  if (!(::fabsf(x) <= 65536.0f)) return onnxopt::cos(x);
  const float n = ::rintf(::fmaf(x, 0.318309886f, -0.5f));
  return negate_if_odd(sin_from(x, n + 0.5f), n + 1.0f);
}

// log(1 + x) and exp(x) - 1 cancel near 0, where their series take over.
__device__ inline float log1p(float x) {
  const float small = x * (1.0f + x * (-0.5f + x * (0.333333333f + x * -0.25f)));
  return ::fabsf(x) < 0.0625f ? small : log(1.0f + x);
}

__device__ inline float expm1(float x) {
  const float small = x * (1.0f + x * (0.5f + x * (0.166666667f + x * 0.0416666667f)));
  return ::fabsf(x) < 0.0625f ? small : exp(x) - 1.0f;
}

// erf(|x|) = 1 - 2^(|x| q(|x|)), q fitted to log2(erfc(t)) / t on [2^-10, 4] with weights for the relative error of
// erf. The absolute error is below 3e-7 everywhere: enough where 1 is added to it, as GELU does.
__device__ inline float erf_plus(float x) {
  const float t = onnxopt::min(::fabsf(x), 4.0f);
  float q = 0.000150250693f;
  q = q * t - 0.000772658852f;
  q = q * t - 0.00158022542f;
  q = q * t + 0.0286703333f;
  q = q * t - 0.148560494f;
  q = q * t - 0.918417513f;
  q = q * t - 1.62790775f;
  return ::copysignf(1.0f - exp2(q * t), x);
}

// Below 2^-10 erf is linear to 3e-7 of itself.
__device__ inline float erf(float x) { return ::fabsf(x) < 0.0009765625f ? x * 1.12837917f : erf_plus(x); }

// x (1 + erf(c x)) / 2 for a constant c from 1/2 to 1: GELU. It is max(x, 0) - t erfc(c t) / 2 with t = |x|, and no sum
// cancels there. log2(erfc(t / sqrt(2)) / 2) is a polynomial, fitted on [0, 6] with weights for the relative error of
// the result. That stays below 2^-15 where c sqrt(2) times the result is 2^-18 or more, and the absolute one of smaller
// results, as from x = -6 on, below 2^-26. x less its negative part is NaN for -infinity, as 0 times it is.
__device__ inline float gelu(float x, float c) {
  const float s = c * 1.41421356f;  // the coefficients become constants
  const float t = onnxopt::min(::fabsf(x), 6.0f / s);
  const float s2 = s * s, s3 = s2 * s;
  float p = 2.92215237e-05f * s3 * s3;
  p = ::fmaf(p, t, -7.05501871e-04f * s2 * s3);
  p = ::fmaf(p, t, 7.72906059e-03f * s2 * s2);
  p = ::fmaf(p, t, -5.25661847e-02f * s3);
  p = ::fmaf(p, t, -4.59668070e-01f * s2);
  p = ::fmaf(p, t, -1.15085076f * s);
  p = ::fmaf(p, t, -1.00001867f);
  return ::fmaf(-t, exp2(p), x - onnxopt::min(x, 0.0f));
}

}  // namespace approximate
}  // namespace onnxopt
