// The two products of a squeeze-excite, and the depthwise convolution whose result they scale: the C++ side of
// onnxopt/program/squeeze_excite.py.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "program/depthwise.h"
#include "program/pointwise.h"

namespace onnxopt {

constexpr std::size_t kSqueezeExciteInputs = 24;

// weight: [results, operands], bias: [results], positions among the inputs. program: of one float32 sum.
struct SqueezeExciteLayer {
  std::size_t weight = 0;
  std::optional<std::size_t> bias;
  Program program;
};

// layer[0]: channels to hidden, layer[1]: hidden to results. mean: the position of [N, ..., channels] where there is no
// depthwise convolution; else the means of its result, output 0, take its place. The last output has the factors.
struct SqueezeExcite {
  std::vector<Dtype> inputs;
  Dtype dtype = Dtype::kFloat32;
  std::int64_t channels = 1;
  std::int64_t hidden = 1;
  std::int64_t results = 1;
  SqueezeExciteLayer layer[2];
  std::optional<std::size_t> mean;
  std::optional<Depthwise> depthwise;
};

}  // namespace onnxopt
