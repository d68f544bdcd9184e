// How weights of packed integers are stored (onnxopt/program/gemm.py says what a product's fields mean).
#pragma once

#include "program/generated/gemm.h"
#include "support/math.h"

namespace onnxopt {

// How many groups cover so many codes.
inline std::int64_t Groups(const PackedIntegers& codes, std::int64_t depth) {
  return static_cast<std::int64_t>(CeilDiv(depth, codes.group));
}
// Bytes of so many groups' codes, and of so many zero points of one column.
inline std::int64_t Bytes(const PackedIntegers& codes, std::int64_t groups) {
  return groups * codes.group * codes.bits / 8;
}
inline std::int64_t ZeroBytes(const PackedIntegers& codes, std::int64_t groups) {
  return (groups * codes.bits + 7) / 8;
}

}  // namespace onnxopt
