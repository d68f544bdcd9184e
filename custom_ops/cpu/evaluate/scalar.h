// The primitives on one element, for every compute dtype: the C++ side of cuda_kernels/scalar.cuh.
//
// Loops over these vectorize. Everything lives in a namespace of the instruction set that it is compiled for, so that
// the linker never merges code for different ones; for the same reason nothing here calls a template of the standard
// library.
#pragma once

#include <math.h>
#include <stdint.h>

#include "support/portability.h"

namespace onnxopt::ONNXOPT_TARGET {

// bool as it lies in memory: a byte that is 0 or 1.
struct Bool {
  uint8_t byte;
};

template <typename T>
struct Traits;

// unsigned_type: what a signed integer wraps in. wide: an unsigned type that does not promote to int.
#define ONNXOPT_TRAITS(type, floating, unsigned_name, wide_name) \
  template <>                                                    \
  struct Traits<type> {                                          \
    static constexpr bool kFloat = floating;                     \
    static constexpr bool kSigned = type(-1) < type(0);          \
    using unsigned_type = unsigned_name;                         \
    using wide = wide_name;                                      \
  };
ONNXOPT_TRAITS(float, true, float, float)
ONNXOPT_TRAITS(double, true, double, double)
ONNXOPT_TRAITS(int8_t, false, uint8_t, uint32_t)
ONNXOPT_TRAITS(int16_t, false, uint16_t, uint32_t)
ONNXOPT_TRAITS(int32_t, false, uint32_t, uint32_t)
ONNXOPT_TRAITS(int64_t, false, uint64_t, uint64_t)
ONNXOPT_TRAITS(uint8_t, false, uint8_t, uint32_t)
ONNXOPT_TRAITS(uint16_t, false, uint16_t, uint32_t)
ONNXOPT_TRAITS(uint32_t, false, uint32_t, uint32_t)
ONNXOPT_TRAITS(uint64_t, false, uint64_t, uint64_t)
#undef ONNXOPT_TRAITS

template <typename T>
constexpr T Lowest() {
  using U = typename Traits<T>::unsigned_type;
  return Traits<T>::kSigned ? static_cast<T>(static_cast<U>(U(1) << (8 * sizeof(T) - 1))) : T(0);
}

template <typename T>
constexpr T Highest() {
  return static_cast<T>(~Lowest<T>());
}

// Two's complement arithmetic: C++ leaves signed overflow undefined.
// NOLINTBEGIN(bugprone-macro-parentheses): an operator has none
#define ONNXOPT_WRAPPING(Name, op)                                   \
  struct Name {                                                      \
    template <typename T>                                            \
    static T Apply(T x, T y) {                                       \
      using W = typename Traits<T>::wide;                            \
      return static_cast<T>(static_cast<W>(x) op static_cast<W>(y)); \
    }                                                                \
  };
// NOLINTEND(bugprone-macro-parentheses)
ONNXOPT_WRAPPING(Add, +)
ONNXOPT_WRAPPING(Sub, -)
ONNXOPT_WRAPPING(Mul, *)
#undef ONNXOPT_WRAPPING

struct Div {
  template <typename T>
  static T Apply(T x, T y) {
    if constexpr (Traits<T>::kFloat) {
      return x / y;
    } else {
      if (y == T(0)) return T(0);
      if constexpr (Traits<T>::kSigned) {
        if (y == T(-1)) return Sub::Apply(T(0), x);  // the lowest value wraps instead of trapping
      }
      return static_cast<T>(x / y);
    }
  }
};

struct Neg {
  template <typename T>
  static T Apply(T x) {
    if constexpr (Traits<T>::kFloat) {
      return -x;
    } else {
      return Sub::Apply(T(0), x);
    }
  }
};

struct Abs {
  template <typename T>
  static T Apply(T x) {
    if constexpr (sizeof(T) == 4 && Traits<T>::kFloat) {
      return __builtin_fabsf(x);
    } else if constexpr (Traits<T>::kFloat) {
      return __builtin_fabs(x);
    } else {
      return x < T(0) ? Neg::Apply(x) : x;
    }
  }
};

struct Sign {
  template <typename T>
  static T Apply(T x) {
    const T sign = static_cast<T>((T(0) < x) - (x < T(0)));
    if constexpr (Traits<T>::kFloat) {
      return x != x ? x : sign;
    } else {
      return sign;
    }
  }
};

struct Min {
  template <typename T>
  static T Apply(T x, T y) {
    return x < y || x != x ? x : y;
  }
};

struct Max {
  template <typename T>
  static T Apply(T x, T y) {
    return y < x || x != x ? x : y;
  }
};

struct Fmod {
  static float Apply(float x, float y) { return ::fmodf(x, y); }
  static double Apply(double x, double y) { return ::fmod(x, y); }
  template <typename T>
  static T Apply(T x, T y) {
    return Sub::Apply(x, Mul::Apply(Div::Apply(x, y), y));
  }
};

struct Mod {
  template <typename T>
  static T Apply(T x, T y) {
    const T remainder = Fmod::Apply(x, y);
    return remainder != T(0) && ((remainder < T(0)) != (y < T(0))) ? Add::Apply(remainder, y) : remainder;
  }
};

// On integers by squaring; a negative exponent gives the truncated reciprocal.
struct Pow {
  static double Apply(double x, double y) { return ::pow(x, y); }
  template <typename T>
  static T Apply(T x, T y) {
    if (y < T(0)) {
      if (x == T(1)) return T(1);
      return x == T(-1) ? ((y & T(1)) != T(0) ? T(-1) : T(1)) : T(0);
    }
    T result = T(1);
    for (; y > T(0); y = static_cast<T>(y >> 1)) {
      if ((y & T(1)) != T(0)) result = Mul::Apply(result, x);
      x = Mul::Apply(x, x);
    }
    return result;
  }
};

struct Lt {
  template <typename T>
  static Bool Apply(T x, T y) {
    return {static_cast<uint8_t>(x < y)};
  }
};

struct Le {
  template <typename T>
  static Bool Apply(T x, T y) {
    return {static_cast<uint8_t>(x <= y)};
  }
};

struct Eq {
  static Bool Apply(Bool x, Bool y) { return {static_cast<uint8_t>(x.byte == y.byte)}; }
  template <typename T>
  static Bool Apply(T x, T y) {
    return {static_cast<uint8_t>(x == y)};
  }
};

struct Isnan {
  template <typename T>
  static Bool Apply(T x) {
    return {static_cast<uint8_t>(x != x)};
  }
};

struct Isinf {
  template <typename T>
  static Bool Apply(T x) {
    return {static_cast<uint8_t>(Abs::Apply(x) == static_cast<T>(__builtin_inff()))};
  }
};

struct Not {
  static Bool Apply(Bool x) { return {static_cast<uint8_t>(x.byte ^ 1U)}; }
};
struct And {
  static Bool Apply(Bool x, Bool y) { return {static_cast<uint8_t>(x.byte & y.byte)}; }
};
struct Or {
  static Bool Apply(Bool x, Bool y) { return {static_cast<uint8_t>(x.byte | y.byte)}; }
};
struct Xor {
  static Bool Apply(Bool x, Bool y) { return {static_cast<uint8_t>(x.byte ^ y.byte)}; }
};

struct BitNot {
  template <typename T>
  static T Apply(T x) {
    return static_cast<T>(~x);
  }
};
struct BitAnd {
  template <typename T>
  static T Apply(T x, T y) {
    return static_cast<T>(x & y);
  }
};
struct BitOr {
  template <typename T>
  static T Apply(T x, T y) {
    return static_cast<T>(x | y);
  }
};
struct BitXor {
  template <typename T>
  static T Apply(T x, T y) {
    return static_cast<T>(x ^ y);
  }
};
struct ShiftLeft {
  template <typename T>
  static T Apply(T x, T y) {
    using W = typename Traits<T>::wide;
    return static_cast<uint64_t>(y) < 8 * sizeof(T) ? static_cast<T>(static_cast<W>(x) << y) : T(0);
  }
};
struct ShiftRight {
  template <typename T>
  static T Apply(T x, T y) {
    return static_cast<uint64_t>(y) < 8 * sizeof(T) ? static_cast<T>(x >> y) : T(0);
  }
};

// Conversions. A float that the integer cannot hold saturates and NaN gives 0, as the GPU does for 32 and 64 bits; C++
// leaves both undefined. Narrower integers take the low bits of that 32-bit result.
template <typename To>
struct Cast {
  template <typename From>
  static To Apply(From x) {
    if constexpr (Traits<From>::kFloat && !Traits<To>::kFloat) {
      if constexpr (sizeof(To) < 4) {
        return static_cast<To>(Cast<int32_t>::Apply(x));
      } else {
        // The bounds as floats: the lowest is exact, the highest rounds up to a power of two, which is already too
        // large.
        constexpr From low = static_cast<From>(Lowest<To>());
        constexpr From high = static_cast<From>(Highest<To>());
        if (x != x) return To(0);
        if (x <= low) return Lowest<To>();
        return x >= high ? Highest<To>() : static_cast<To>(x);
      }
    } else {
      return static_cast<To>(x);
    }
  }
  static To Apply(Bool x) { return static_cast<To>(x.byte); }
};

template <>
struct Cast<Bool> {
  static Bool Apply(Bool x) { return x; }
  template <typename From>
  static Bool Apply(From x) {
    return {static_cast<uint8_t>(x != From(0))};
  }
};

}  // namespace onnxopt::ONNXOPT_TARGET
