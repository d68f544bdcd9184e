// Float functions: float32 on SIMD batches, float64 from the C library.
#pragma once

#include "loops.h"

namespace onnxopt::ONNXOPT_TARGET {

#define ONNXOPT_FUNCTION(Name, name)                             \
  struct Name {                                                  \
    template <typename Batch>                                    \
    static Batch Apply(const Batch& x) {                         \
      return xsimd::name(x);                                     \
    }                                                            \
    static double Apply(double x) { return ::name(x); }          \
  };
ONNXOPT_FUNCTION(Exp, exp)
ONNXOPT_FUNCTION(Expm1, expm1)
ONNXOPT_FUNCTION(Log, log)
ONNXOPT_FUNCTION(Log1p, log1p)
ONNXOPT_FUNCTION(Erf, erf)
ONNXOPT_FUNCTION(Sin, sin)
ONNXOPT_FUNCTION(Cos, cos)
ONNXOPT_FUNCTION(Tan, tan)
ONNXOPT_FUNCTION(Asin, asin)
ONNXOPT_FUNCTION(Acos, acos)
ONNXOPT_FUNCTION(Atan, atan)
ONNXOPT_FUNCTION(Sinh, sinh)
ONNXOPT_FUNCTION(Cosh, cosh)
ONNXOPT_FUNCTION(Tanh, tanh)
ONNXOPT_FUNCTION(Asinh, asinh)
ONNXOPT_FUNCTION(Acosh, acosh)
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
