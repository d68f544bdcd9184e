// Mixtures of experts in kernels.json.
#pragma once

#include <vector>

#include "kernel_file/kernel.h"
#include "program/experts.h"
#include "support/json_reader.h"

namespace onnxopt {

// What the entry points do, in their order: both products of few rows; finding the rows of all experts, and both
// products of many; adding up.
constexpr std::size_t kExpertsFew = 0;
constexpr std::size_t kExpertsRoute = 2;
constexpr std::size_t kExpertsMany = 3;
constexpr std::size_t kExpertsJoin = 5;
constexpr std::size_t kExpertsLaunches = 6;

// Rows and columns of a block's tile, 0 where an entry point has none.
struct ExpertsTileShape {
  std::uint64_t rows;
  std::uint64_t columns;
};

// The fields of a mixture of experts. Throws Error naming the place of what is not as program/experts.py writes it.
Experts ReadExperts(const JsonReader& json, const std::vector<Dtype>& inputs, const std::vector<Dtype>& outputs);

Variant ReadExpertsVariant(const JsonReader& json);

// Throws Error where the entry points, which lie at `json`, are not those above.
void CheckExpertsVariants(const JsonReader& json, const std::vector<Variant>& variants);

}  // namespace onnxopt
