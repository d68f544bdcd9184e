// Float functions: float32 on SIMD batches, float64 from the C library.
//
// float32 is within 4 ulp over the whole range, subnormal results included; erf and tanh within 4.5 ulp (5.5 where
// there is no fused multiply-add). tests/support/custom_ops/custom_ops_oracle.py has the bound of each function, and
// tests measure it. What xsimd offers is used where it is that accurate and fast. exp has the polynomial of N. Juffa's
// expf. erf and tanh are ratios of polynomials with the least relative error on (0, saturates), below 0.4 ulp before
// rounding.
#pragma once

#include "cpu/evaluate/loops.h"

namespace onnxopt::ONNXOPT_TARGET {

// c[0] * x^(n-1) + ... + c[n-1]
template <typename Batch, size_t kTerms>
inline Batch Polynomial(const Batch& x, const float (&c)[kTerms]) {
  Batch sum(c[0]);
  for (size_t k = 1; k < kTerms; ++k) sum = xsimd::fma(sum, x, Batch(c[k]));
  return sum;
}

// 2^n for whole n from -126 to 127.
template <typename Batch>
inline Batch PowerOfTwo(const Batch& n) {
  return xsimd::bitwise_cast<float>((xsimd::to_int(n) + 127) << 23);
}

// 2^n * e^r, where x = n * ln 2 + r and n is whole. x: from -104 to 89.
template <typename Batch>
struct Reduced {
  Batch n;
  Batch power;  // e^r

  explicit Reduced(const Batch& x) {
    constexpr float kMagic = 12582912.0F;  // 1.5 * 2^23: adding it rounds to a whole number
    n = xsimd::fma(x, Batch(1.442695F), Batch(kMagic)) - Batch(kMagic);
    const Batch r = xsimd::fma(n, Batch(-1.42860677e-6F), xsimd::fma(n, Batch(-6.93145752e-1F), x));
    constexpr float kTerms[] = {
        1.37805939e-3F, 8.37312452e-3F, 4.16695364e-2F, 1.66664720e-1F, 4.99999851e-1F, 1.0F, 1.0F};
    power = Polynomial(r, kTerms);
  }
};

struct Exp {
  template <typename Batch>
  static Batch Apply(const Batch& x) {
    // A NaN is the second operand, which x86's minimum and maximum return.
    const Batch clamped = xsimd::max(Batch(-104.0F), xsimd::min(Batch(89.0F), x));
    const Reduced<Batch> e(clamped);
    // In two factors: 2^n alone overflows before the result does, and is subnormal before it.
    const Batch half = xsimd::fma(e.n, Batch(0.5F), Batch(12582912.0F)) - Batch(12582912.0F);
    return e.power * PowerOfTwo(half) * PowerOfTwo(e.n - half);
  }
  static double Apply(double x) { return ::exp(x); }
};

// The same operations in the same order as the primitives that it stands for.
struct Sigmoid {
  template <typename T>
  static T Apply(const T& x) {
    return T(1) / (Exp::Apply(-x) + T(1));
  }
};

// x * P(x^2) / Q(x^2), an odd function that reaches 1 within a float at `saturates`, and stays there.
template <typename Batch, size_t kP, size_t kQ>
inline Batch Saturating(const Batch& x, const float (&p)[kP], const float (&q)[kQ], float saturates) {
  const Batch s = x * x;
  const Batch one = xsimd::copysign(Batch(1.0F), x);
  const Batch ratio = x * Polynomial(s, p) / Polynomial(s, q);
  // A NaN passes both comparisons.
  const auto beyond = xsimd::abs(x) >= Batch(saturates) || xsimd::abs(ratio) > Batch(1.0F);
  return xsimd::select(beyond, one, ratio);
}

struct Erf {
  template <typename Batch>
  static Batch Apply(const Batch& x) {
    constexpr float kP[] = {2.045994031561363e-06F, 2.8482575412409135e-04F, 3.772110946918175e-03F,
                            5.276790940537801e-02F, 1.9058465460079257e-01F, 1.1283791459153507F};
    constexpr float kQ[] = {3.804649746078695e-05F,  1.1637366488150634e-03F, 1.498232181041869e-02F,
                            1.1417879324338792e-01F, 5.022339854391393e-01F,  1.0F};
    return Saturating(x, kP, kQ, 3.925F);
  }
  static double Apply(double x) { return ::erf(x); }
};

struct Tanh {
  template <typename Batch>
  static Batch Apply(const Batch& x) {
    constexpr float kP[] = {1.331781211764671e-08F, 2.0582573715438594e-05F, 3.493980324860838e-03F,
                            1.337967291432601e-01F, 9.999999791901001e-01F};
    constexpr float kQ[] = {7.761503037409236e-07F, 3.283003306977911e-04F, 2.5870868642380602e-02F,
                            4.671298822132434e-01F, 1.0F};
    return Saturating(x, kP, kQ, 9.02F);
  }
  static double Apply(double x) { return ::tanh(x); }
};

struct Expm1 {
  template <typename Batch>
  static Batch Apply(const Batch& x) {
    // xsimd's overflows from 88.37 on; there the 1 does not matter.
    return xsimd::select(x > Batch(80.0F), Exp::Apply(x), xsimd::expm1(x));
  }
  static double Apply(double x) { return ::expm1(x); }
};

struct Acosh {
  template <typename Batch>
  static Batch Apply(const Batch& x) {
    return xsimd::select(x < Batch(1.0F), Batch(__builtin_nanf("")), xsimd::acosh(x));
  }
  static double Apply(double x) { return ::acosh(x); }
};

#define ONNXOPT_FUNCTION(Name, name)                    \
  struct Name {                                         \
    template <typename Batch>                           \
    static Batch Apply(const Batch& x) {                \
      return xsimd::name(x);                            \
    }                                                   \
    static double Apply(double x) { return ::name(x); } \
  };
ONNXOPT_FUNCTION(Log, log)
ONNXOPT_FUNCTION(Log1p, log1p)
ONNXOPT_FUNCTION(Sin, sin)
ONNXOPT_FUNCTION(Cos, cos)
ONNXOPT_FUNCTION(Tan, tan)
ONNXOPT_FUNCTION(Asin, asin)
ONNXOPT_FUNCTION(Acos, acos)
ONNXOPT_FUNCTION(Atan, atan)
ONNXOPT_FUNCTION(Sinh, sinh)
ONNXOPT_FUNCTION(Cosh, cosh)
ONNXOPT_FUNCTION(Asinh, asinh)
ONNXOPT_FUNCTION(Atanh, atanh)
#undef ONNXOPT_FUNCTION

struct Sqrt {
  static float Apply(float x) { return __builtin_sqrtf(x); }
  static double Apply(double x) { return __builtin_sqrt(x); }
};
struct Floor {
  static float Apply(float x) { return __builtin_floorf(x); }
  static double Apply(double x) { return __builtin_floor(x); }
};
struct Ceil {
  static float Apply(float x) { return __builtin_ceilf(x); }
  static double Apply(double x) { return __builtin_ceil(x); }
};
struct Round {
  static float Apply(float x) { return __builtin_rintf(x); }
  static double Apply(double x) { return __builtin_rint(x); }
};

}  // namespace onnxopt::ONNXOPT_TARGET
