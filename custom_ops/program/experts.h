// The places of a mixture of experts' inputs (onnxopt/program/experts.py says what its fields mean).
#pragma once

#include "program/generated/experts.h"

namespace onnxopt {

// Positions among the inputs.
constexpr std::size_t kExpertsX = 0;        // [tokens, columns]
constexpr std::size_t kExpertsIds = 1;      // [tokens, chosen], int64
constexpr std::size_t kExpertsFactors = 2;  // [tokens, chosen], float32 or as x
constexpr std::size_t kExpertsWeights =
    3;  // two: [experts, columns, hidden or 2 hidden] and [experts, hidden, columns]

}  // namespace onnxopt
