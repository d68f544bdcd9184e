// Mixtures of experts in kernels.json.
#pragma once

#include <vector>

#include "kernel_file/kernel.h"
#include "program/experts.h"
#include "support/json_reader.h"

namespace onnxopt {

// A form of the two products, the second behind the first. route: finds the rows of all experts; kNone where the blocks
// find them. The forms take more rows each than the one ahead.
struct ExpertsForm {
  static constexpr std::size_t kNone = ~std::size_t{0};
  std::size_t route;
  std::size_t first;
};

// The entry points: those of the forms, the activation, adding up; sorting, the activation and adding up where cuBLASLt
// multiplies.
constexpr ExpertsForm kExpertsForms[] = {{ExpertsForm::kNone, 0}, {ExpertsForm::kNone, 2}, {4, 5}, {7, 8}};
constexpr std::size_t kExpertsActivate = 10;
constexpr std::size_t kExpertsJoin = 11;
constexpr std::size_t kExpertsSort = 12;
constexpr std::size_t kExpertsActivateSorted = 13;
constexpr std::size_t kExpertsJoinSorted = 14;
constexpr std::size_t kExpertsLaunches = 15;

// Rows and columns of a block's tile, 0 where an entry point has none, and elements of each row in a step of its depth.
// least_rows: of an expert on average, from which cuBLASLt multiplies where it can; of the entry point that sorts
// alone.
struct ExpertsTileShape {
  std::uint64_t rows;
  std::uint64_t columns;
  std::uint64_t depth;
  std::uint64_t least_rows;
};

Variant ReadExpertsVariant(const JsonReader& json, const Experts& experts);

// Throws Error where the entry points, which lie at `json`, are not those above.
void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const Experts& experts, std::vector<Variant>* variants);

}  // namespace onnxopt
