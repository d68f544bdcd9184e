// The chosen experts of each token: the C++ side of onnxopt/program/experts.py.
#pragma once

#include <cstdint>
#include <optional>

#include "program/pointwise.h"

namespace onnxopt {

// Positions among the inputs.
constexpr std::size_t kExpertsX = 0;        // [tokens, columns]
constexpr std::size_t kExpertsIds = 1;      // [tokens, chosen], int64
constexpr std::size_t kExpertsFactors = 2;  // [tokens, chosen], float32 or as x
constexpr std::size_t kExpertsWeights =
    3;                                     // two: [experts, columns, hidden or 2 hidden] and [experts, hidden, columns]
constexpr std::size_t kExpertsPlain = 5;   // without biases
constexpr std::size_t kExpertsInputs = 7;  // at most

// program: of one float32 sum of the first product, or of two, which are its halves; gated() says which. interleaved:
// they are its even and its odd columns. bias: position of each product's, [experts, its columns].
struct Experts {
  std::size_t inputs = kExpertsPlain;
  Dtype dtype = Dtype::kFloat32;
  Dtype factors = Dtype::kFloat32;
  std::int64_t experts = 1;
  std::int64_t chosen = 1;
  std::int64_t columns = 1;
  std::int64_t hidden = 1;
  Program program;
  std::optional<std::size_t> bias[2];
  bool interleaved = false;

  bool gated() const { return program.inputs.size() == 2; }
  // Of the first product's result.
  std::int64_t wide() const { return gated() ? 2 * hidden : hidden; }
};

}  // namespace onnxopt
