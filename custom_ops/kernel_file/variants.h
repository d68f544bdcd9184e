// The entry points of a kernel together: their order, and what no rule of a schema says. Every check throws Error
// naming the place, of which `json` is the list of entry points.
#pragma once

#include <cstddef>
#include <vector>

#include "kernel_file/kernel.h"
#include "program/generated/attention.h"
#include "program/generated/block.h"
#include "program/generated/convolution.h"
#include "program/generated/experts.h"
#include "program/generated/flash_attention.h"
#include "program/generated/gemm.h"
#include "program/generated/group_norm.h"
#include "program/generated/squeeze_excite.h"
#include "support/json_reader.h"

namespace onnxopt {

constexpr unsigned kGroupNormLaunches = 2;  // of a split variant, side by side

void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const GroupNorm& norm, std::vector<Variant>* variants);

// Squeeze-excites: the products of few rows and of many, with rows a block as their `unroll`; then, for a map of a
// depthwise convolution, adding the sums of tiles; then those of the convolution.
constexpr std::size_t kSqueezeExciteFew = 0;
constexpr std::size_t kSqueezeExciteMany = 1;
constexpr std::size_t kSqueezeExciteFold = 2;
constexpr std::size_t kSqueezeExciteMap = 3;

Variant ReadSqueezeExciteVariant(const JsonReader& json, const SqueezeExcite& meaning);

void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const SqueezeExcite& meaning,
                      std::vector<Variant>* variants);

// A form of the two products of experts, one entry point after the other. route: finds the rows of all experts; kNone
// where the blocks find them. The forms are ordered by the rows that they take.
struct ExpertsForm {
  static constexpr std::size_t kNone = ~std::size_t{0};
  std::size_t route;
  std::size_t first;
};

// Experts: those of the forms, the activation, adding up; sorting, the activation and adding up where cuBLASLt
// multiplies.
constexpr ExpertsForm kExpertsForms[] = {{ExpertsForm::kNone, 0}, {ExpertsForm::kNone, 2}, {4, 5}, {7, 8}};
constexpr std::size_t kExpertsActivate = 10;
constexpr std::size_t kExpertsJoin = 11;
constexpr std::size_t kExpertsSort = 12;
constexpr std::size_t kExpertsActivateSorted = 13;
constexpr std::size_t kExpertsJoinSorted = 14;
constexpr std::size_t kExpertsLaunches = 15;

void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const Experts& experts, std::vector<Variant>* variants);

Variant ReadGemmVariant(const JsonReader& json, const Gemm& gemm);

// Those for few rows are optional: cuBLASLt runs every product of floats. Of codes, the one that widens is the first.
// Without a fatbin there are none afterwards.
void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const Gemm& gemm, std::vector<Variant>* variants);

// cuDNN runs what has no entry points.
Variant ReadConvolutionVariant(const JsonReader& json, const Convolution& convolution);
void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const Convolution& convolution,
                      std::vector<Variant>* variants);
void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const Block& block, std::vector<Variant>* variants);

constexpr std::size_t kAttentionLaunches = 2;  // at most: the last entry point joins, one of the others attends

// The shared memory is what the tiles take.
void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const TokenAttention& attention,
                      std::vector<Variant>* variants);

constexpr unsigned kFlashRows = 16;      // queries of a warp's band
constexpr unsigned kWarpgroupRows = 64;  // of a warpgroup

// Queries of a block.
unsigned FlashQueries(const Variant& variant);

// The shared memory is what the tiles take.
void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const FlashAttention& attention,
                      std::vector<Variant>* variants);

}  // namespace onnxopt
