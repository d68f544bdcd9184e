// The scalar primitives of onnxopt/program/pointwise.py as one table; tests/library/test_pointwise.py compares both.
//
// X(enumerator, name, arity, operand dtypes, predicate, cost). Semantics are documented in program/pointwise.py.
// ONNXOPT_FUSED are those that cpu/blocks/peephole.h makes of several; kernels.json cannot name them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace onnxopt {

// Which operand dtypes a primitive takes: bits by DtypeKind.
constexpr unsigned kOnFloat = 1U;
constexpr unsigned kOnInteger = 2U | 4U;
constexpr unsigned kOnBool = 8U;
constexpr unsigned kOnNumber = kOnFloat | kOnInteger;
constexpr unsigned kOnAny = kOnNumber | kOnBool;

#define ONNXOPT_PRIMITIVES(X)                            \
  X(kConst, "const", 0, kOnAny, false, 0)                \
  X(kCast, "cast", 1, kOnAny, false, 1)                  \
  X(kNarrow, "narrow", 1, kOnFloat, false, 2)            \
  X(kNeg, "neg", 1, kOnNumber, false, 1)                 \
  X(kAbs, "abs", 1, kOnNumber, false, 1)                 \
  X(kSign, "sign", 1, kOnNumber, false, 2)               \
  X(kAdd, "add", 2, kOnNumber, false, 1)                 \
  X(kSub, "sub", 2, kOnNumber, false, 1)                 \
  X(kMul, "mul", 2, kOnNumber, false, 1)                 \
  X(kDiv, "div", 2, kOnNumber, false, 8)                 \
  X(kMin, "min", 2, kOnNumber, false, 2)                 \
  X(kMax, "max", 2, kOnNumber, false, 2)                 \
  X(kPow, "pow", 2, kOnNumber, false, 40)                \
  X(kMod, "mod", 2, kOnInteger, false, 20)               \
  X(kFmod, "fmod", 2, kOnNumber, false, 20)              \
  X(kSqrt, "sqrt", 1, kOnFloat, false, 8)                \
  X(kExp, "exp", 1, kOnFloat, false, 8)                  \
  X(kExpm1, "expm1", 1, kOnFloat, false, 16)             \
  X(kLog, "log", 1, kOnFloat, false, 12)                 \
  X(kLog1p, "log1p", 1, kOnFloat, false, 16)             \
  X(kErf, "erf", 1, kOnFloat, false, 20)                 \
  X(kSin, "sin", 1, kOnFloat, false, 20)                 \
  X(kCos, "cos", 1, kOnFloat, false, 20)                 \
  X(kTan, "tan", 1, kOnFloat, false, 24)                 \
  X(kAsin, "asin", 1, kOnFloat, false, 20)               \
  X(kAcos, "acos", 1, kOnFloat, false, 20)               \
  X(kAtan, "atan", 1, kOnFloat, false, 20)               \
  X(kSinh, "sinh", 1, kOnFloat, false, 24)               \
  X(kCosh, "cosh", 1, kOnFloat, false, 16)               \
  X(kTanh, "tanh", 1, kOnFloat, false, 16)               \
  X(kAsinh, "asinh", 1, kOnFloat, false, 24)             \
  X(kAcosh, "acosh", 1, kOnFloat, false, 24)             \
  X(kAtanh, "atanh", 1, kOnFloat, false, 24)             \
  X(kFloor, "floor", 1, kOnFloat, false, 1)              \
  X(kCeil, "ceil", 1, kOnFloat, false, 1)                \
  X(kRound, "round", 1, kOnFloat, false, 1)              \
  X(kIsnan, "isnan", 1, kOnFloat, true, 1)               \
  X(kIsinf, "isinf", 1, kOnFloat, true, 1)               \
  X(kLt, "lt", 2, kOnNumber, true, 1)                    \
  X(kLe, "le", 2, kOnNumber, true, 1)                    \
  X(kEq, "eq", 2, kOnAny, true, 1)                       \
  X(kNot, "not", 1, kOnBool, false, 1)                   \
  X(kAnd, "and", 2, kOnBool, false, 1)                   \
  X(kOr, "or", 2, kOnBool, false, 1)                     \
  X(kXor, "xor", 2, kOnBool, false, 1)                   \
  X(kBitNot, "bit_not", 1, kOnInteger, false, 1)         \
  X(kBitAnd, "bit_and", 2, kOnInteger, false, 1)         \
  X(kBitOr, "bit_or", 2, kOnInteger, false, 1)           \
  X(kBitXor, "bit_xor", 2, kOnInteger, false, 1)         \
  X(kShiftLeft, "shift_left", 2, kOnInteger, false, 1)   \
  X(kShiftRight, "shift_right", 2, kOnInteger, false, 1) \
  X(kSelect, "select", 3, kOnAny, false, 1)

#define ONNXOPT_FUSED(X) X(kSigmoid, "1/(1+exp(-x))", 1, kOnFloat, false, 18)

enum class Op : std::uint8_t {
#define ONNXOPT_ENUMERATOR(enumerator, ...) enumerator,
  ONNXOPT_PRIMITIVES(ONNXOPT_ENUMERATOR) ONNXOPT_FUSED(ONNXOPT_ENUMERATOR)
#undef ONNXOPT_ENUMERATOR
};

}  // namespace onnxopt
