// Weights of 2, 4 or 8 bits as floats, a piece of a column at a time.
#pragma once

#include "program/gemm.h"

namespace onnxopt {

class WeightOfCodes {
 public:
  // inputs: of the gemm, which has codes. depth: of a column.
  WeightOfCodes(const Gemm& gemm, const void* const* inputs, std::int64_t depth);

  // Elements [first, first + count) of a column.
  void Read(std::int64_t column, std::int64_t first, std::int64_t count, float* floats) const;

 private:
  float Zero(std::int64_t column, std::int64_t group) const;

  const Gemm& gemm_;
  const PackedIntegers& codes_;
  const void* const* inputs_;
  const std::int64_t groups_;
};

}  // namespace onnxopt
