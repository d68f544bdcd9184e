// One evaluator. CMake compiles this file once per instruction set, with ONNXOPT_TARGET naming it (targets.h).

#include "cpu/evaluate/convert.h"
#include "cpu/evaluate/functions.h"
#include "cpu/evaluate/pow.h"
#include "cpu/evaluate/targets.h"

namespace onnxopt::ONNXOPT_TARGET {
namespace {

template <typename F, typename R, typename T>
StepFunction BinaryStep(Splats splats) {
  switch (splats) {
    case 0:
      return Binary<F, R, T, 0>;
    case 1:
      return Binary<F, R, T, 1>;
    case 2:
      return Binary<F, R, T, 2>;
    default:
      return nullptr;
  }
}

template <typename T>
StepFunction SelectStep(Splats splats) {
  switch (splats) {
    case 0:
      return Select<T, 0>;
    case 2:
      return Select<T, 2>;
    case 4:
      return Select<T, 4>;
    case 6:
      return Select<T, 6>;
    default:
      return nullptr;
  }
}

template <typename To>
StepFunction CastStep(Dtype from) {
  switch (from) {
    case Dtype::kFloat32:
      return Unary<Cast<To>, To, float>;
    case Dtype::kFloat64:
      return Unary<Cast<To>, To, double>;
    case Dtype::kInt8:
      return Unary<Cast<To>, To, int8_t>;
    case Dtype::kInt16:
      return Unary<Cast<To>, To, int16_t>;
    case Dtype::kInt32:
      return Unary<Cast<To>, To, int32_t>;
    case Dtype::kInt64:
      return Unary<Cast<To>, To, int64_t>;
    case Dtype::kUint8:
      return Unary<Cast<To>, To, uint8_t>;
    case Dtype::kUint16:
      return Unary<Cast<To>, To, uint16_t>;
    case Dtype::kUint32:
      return Unary<Cast<To>, To, uint32_t>;
    case Dtype::kUint64:
      return Unary<Cast<To>, To, uint64_t>;
    case Dtype::kBool:
      return Unary<Cast<To>, To, Bool>;
    default:
      return nullptr;
  }
}

// Arithmetic, comparisons and select on numbers.
template <typename T>
StepFunction NumberStep(Op op, Splats splats) {
  switch (op) {
    case Op::kNeg:
      return Unary<Neg, T, T>;
    case Op::kAbs:
      return Unary<Abs, T, T>;
    case Op::kSign:
      return Unary<Sign, T, T>;
    case Op::kAdd:
      return BinaryStep<Add, T, T>(splats);
    case Op::kSub:
      return BinaryStep<Sub, T, T>(splats);
    case Op::kMul:
      return BinaryStep<Mul, T, T>(splats);
    case Op::kDiv:
      return BinaryStep<Div, T, T>(splats);
    case Op::kMin:
      return BinaryStep<Min, T, T>(splats);
    case Op::kMax:
      return BinaryStep<Max, T, T>(splats);
    case Op::kFmod:
      return splats == 0 ? Binary<Fmod, T, T, 0> : nullptr;
    case Op::kLt:
      return BinaryStep<Lt, Bool, T>(splats);
    case Op::kLe:
      return BinaryStep<Le, Bool, T>(splats);
    case Op::kEq:
      return BinaryStep<Eq, Bool, T>(splats);
    case Op::kSelect:
      return SelectStep<T>(splats);
    default:
      return nullptr;
  }
}

template <typename T>
StepFunction IntegerStep(Op op, Splats splats) {
  switch (op) {
    case Op::kPow:
      return splats == 0 ? Binary<Pow, T, T, 0> : nullptr;
    case Op::kMod:
      return splats == 0 ? Binary<Mod, T, T, 0> : nullptr;
    case Op::kBitNot:
      return Unary<BitNot, T, T>;
    case Op::kBitAnd:
      return BinaryStep<BitAnd, T, T>(splats);
    case Op::kBitOr:
      return BinaryStep<BitOr, T, T>(splats);
    case Op::kBitXor:
      return BinaryStep<BitXor, T, T>(splats);
    case Op::kShiftLeft:
      return BinaryStep<ShiftLeft, T, T>(splats);
    case Op::kShiftRight:
      return BinaryStep<ShiftRight, T, T>(splats);
    default:
      return NumberStep<T>(op, splats);
  }
}

// A float function: SIMD batches for float, the C library for double.
template <typename F, typename T>
StepFunction FunctionStep() {
  if constexpr (sizeof(T) == sizeof(float)) {
    return UnaryBatch<F>;
  } else {
    return Unary<F, T, T>;
  }
}

template <typename T>
StepFunction FloatStep(Op op, Splats splats) {
  switch (op) {
    case Op::kSqrt:
      return Unary<Sqrt, T, T>;
    case Op::kFloor:
      return Unary<Floor, T, T>;
    case Op::kCeil:
      return Unary<Ceil, T, T>;
    case Op::kRound:
      return Unary<Round, T, T>;
    case Op::kIsnan:
      return Unary<Isnan, Bool, T>;
    case Op::kIsinf:
      return Unary<Isinf, Bool, T>;
#define ONNXOPT_FUNCTION(name) \
  case Op::k##name:            \
    return FunctionStep<name, T>();
      ONNXOPT_FUNCTION(Sigmoid)
      ONNXOPT_FUNCTION(Exp)
      ONNXOPT_FUNCTION(Expm1)
      ONNXOPT_FUNCTION(Log)
      ONNXOPT_FUNCTION(Log1p)
      ONNXOPT_FUNCTION(Erf)
      ONNXOPT_FUNCTION(Sin)
      ONNXOPT_FUNCTION(Cos)
      ONNXOPT_FUNCTION(Tan)
      ONNXOPT_FUNCTION(Asin)
      ONNXOPT_FUNCTION(Acos)
      ONNXOPT_FUNCTION(Atan)
      ONNXOPT_FUNCTION(Sinh)
      ONNXOPT_FUNCTION(Cosh)
      ONNXOPT_FUNCTION(Tanh)
      ONNXOPT_FUNCTION(Asinh)
      ONNXOPT_FUNCTION(Acosh)
      ONNXOPT_FUNCTION(Atanh)
#undef ONNXOPT_FUNCTION
    default:
      return NumberStep<T>(op, splats);
  }
}

StepFunction Float32Step(const StepKey& key, Splats splats) {
  if (key.op == Op::kPow) return PowStep(splats);
  if (key.op != Op::kNarrow) return FloatStep<float>(key.op, splats);
  if (key.storage == Dtype::kFloat16) return RoundFloat16;
  if (key.storage == Dtype::kBfloat16) return RoundBfloat16;
  return key.storage == Dtype::kFloat8E4M3 ? RoundFloat8 : Unary<Cast<float>, float, float>;
}

StepFunction Float64Step(Op op, Splats splats) {
  if (op == Op::kPow) return splats == 0 ? Binary<Pow, double, double, 0> : nullptr;
  return FloatStep<double>(op, splats);
}

StepFunction BoolStep(Op op, Splats splats) {
  switch (op) {
    case Op::kEq:
      return BinaryStep<Eq, Bool, Bool>(splats);
    case Op::kNot:
      return Unary<Not, Bool, Bool>;
    case Op::kAnd:
      return BinaryStep<And, Bool, Bool>(splats);
    case Op::kOr:
      return BinaryStep<Or, Bool, Bool>(splats);
    case Op::kXor:
      return BinaryStep<Xor, Bool, Bool>(splats);
    case Op::kSelect:
      return SelectStep<Bool>(splats);
    default:
      return nullptr;
  }
}

StepFunction FindCast(Dtype to, Dtype from) {
  switch (to) {
    case Dtype::kFloat32:
      return CastStep<float>(from);
    case Dtype::kFloat64:
      return CastStep<double>(from);
    case Dtype::kInt8:
      return CastStep<int8_t>(from);
    case Dtype::kInt16:
      return CastStep<int16_t>(from);
    case Dtype::kInt32:
      return CastStep<int32_t>(from);
    case Dtype::kInt64:
      return CastStep<int64_t>(from);
    case Dtype::kUint8:
      return CastStep<uint8_t>(from);
    case Dtype::kUint16:
      return CastStep<uint16_t>(from);
    case Dtype::kUint32:
      return CastStep<uint32_t>(from);
    case Dtype::kUint64:
      return CastStep<uint64_t>(from);
    case Dtype::kBool:
      return CastStep<Bool>(from);
    default:
      return nullptr;
  }
}

StepFunction FindStep(const StepKey& key, Splats splats) {
  if (key.op == Op::kCast) return FindCast(key.dtype, key.operand);
  switch (key.operand) {
    case Dtype::kFloat32:
      return Float32Step(key, splats);
    case Dtype::kFloat64:
      return Float64Step(key.op, splats);
    case Dtype::kInt8:
      return IntegerStep<int8_t>(key.op, splats);
    case Dtype::kInt16:
      return IntegerStep<int16_t>(key.op, splats);
    case Dtype::kInt32:
      return IntegerStep<int32_t>(key.op, splats);
    case Dtype::kInt64:
      return IntegerStep<int64_t>(key.op, splats);
    case Dtype::kUint8:
      return IntegerStep<uint8_t>(key.op, splats);
    case Dtype::kUint16:
      return IntegerStep<uint16_t>(key.op, splats);
    case Dtype::kUint32:
      return IntegerStep<uint32_t>(key.op, splats);
    case Dtype::kUint64:
      return IntegerStep<uint64_t>(key.op, splats);
    case Dtype::kBool:
      return BoolStep(key.op, splats);
    default:
      return nullptr;
  }
}

StepFunction FindLoad(Dtype storage) {
  if (storage == Dtype::kFloat16) return WidenFloat16;
  if (storage == Dtype::kBfloat16) return WidenBfloat16;
  return storage == Dtype::kFloat8E4M3 ? WidenFloat8 : nullptr;
}

StepFunction FindStore(Dtype storage) {
  if (storage == Dtype::kFloat16) return NarrowFloat16;
  if (storage == Dtype::kBfloat16) return NarrowBfloat16;
  return storage == Dtype::kFloat8E4M3 ? NarrowFloat8 : nullptr;
}

StepFunction FindFill(std::size_t size) {
  switch (size) {
    case 1:
      return Fill<uint8_t>;
    case 2:
      return Fill<uint16_t>;
    case 4:
      return Fill<uint32_t>;
    default:
      return Fill<uint64_t>;
  }
}

StepFunction FindFindZero(std::size_t size) {
  switch (size) {
    case 1:
      return FindZero<uint8_t>;
    case 2:
      return FindZero<uint16_t>;
    case 4:
      return FindZero<uint32_t>;
    default:
      return FindZero<uint64_t>;
  }
}

}  // namespace

extern const Evaluator kEvaluator;
const Evaluator kEvaluator = {ONNXOPT_TARGET_NAME, FindStep, FindLoad, FindStore, FindFill, FindFindZero};

}  // namespace onnxopt::ONNXOPT_TARGET
