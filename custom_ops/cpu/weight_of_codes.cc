#include "cpu/weight_of_codes.h"

#include "cpu/evaluate/best_evaluator.h"

namespace onnxopt {
namespace {

// Number `at` of codes that lie packed from `data` on.
unsigned CodeAt(const void* data, std::int64_t at, unsigned bits) {
  const auto* const bytes = static_cast<const std::uint8_t*>(data);
  const std::int64_t first = at * bits;
  return static_cast<unsigned>(bytes[first / 8]) >> (first % 8) & ((1U << bits) - 1);
}

float FloatAt(const void* data, std::int64_t at, Dtype dtype) {
  float value = 0;
  const char* const from = static_cast<const char*>(data) + at * static_cast<std::int64_t>(Size(dtype));
  BestEvaluator().load(dtype)(&value, from, nullptr, nullptr, 1);
  return value;
}

}  // namespace

WeightOfCodes::WeightOfCodes(const Gemm& gemm, const void* const* inputs, std::int64_t depth)
    : gemm_(gemm), codes_(*gemm.packed), inputs_(inputs), groups_(codes_.Groups(depth)) {}

float WeightOfCodes::Zero(std::int64_t column, std::int64_t group) const {
  if (!codes_.zeros) return static_cast<float>(1U << (codes_.bits - 1));
  const void* const zeros = inputs_[*codes_.zeros];
  if (!codes_.packed_zeros) return FloatAt(zeros, column * groups_ + group, gemm_.dtype);
  const char* const of_column = static_cast<const char*>(zeros) + column * codes_.ZeroBytes(groups_);
  return static_cast<float>(CodeAt(of_column, group, codes_.bits));
}

void WeightOfCodes::Read(std::int64_t column, std::int64_t first, std::int64_t count, float* floats) const {
  const char* const b = static_cast<const char*>(inputs_[gemm_.b]) + column * codes_.Bytes(groups_);
  float scale = 0;
  float zero = 0;
  std::int64_t of = -1;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t group = (first + i) / codes_.group;
    if (group != of) {
      scale = FloatAt(inputs_[codes_.scales], column * groups_ + group, gemm_.dtype);
      zero = Zero(column, group);
      of = group;
    }
    floats[i] = (static_cast<float>(CodeAt(b, first + i, codes_.bits)) - zero) * scale;
  }
}

}  // namespace onnxopt
