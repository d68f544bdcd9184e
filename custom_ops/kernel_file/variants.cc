#include "kernel_file/variants.h"

#include <algorithm>
#include <string>

#include "kernel_file/generated/readers.h"
#include "kernel_file/kind_reader.h"
#include "support/math.h"

namespace onnxopt {
namespace {

// Bytes of shared memory of a block that attends (cuda_kernels/attention/).
std::uint64_t SharedBytes(const TokenAttention& attention, const Variant& variant) {
  constexpr std::uint64_t kMaxTokens = 16;
  constexpr std::uint64_t kKeys = 16;  // of a tile
  const auto& shape = variant.shape.As<AttentionVariant>();
  const auto width = static_cast<std::uint64_t>(attention.width);
  const std::uint64_t joined = (width + 2) * sizeof(float);
  const std::uint64_t warps = variant.threads / kWarpThreads;
  const auto rows = static_cast<std::uint64_t>(attention.mask ? attention.rows : attention.heads / attention.groups);
  if (shape.registers) {
    const std::uint64_t fresh = 2 * kMaxTokens * width * Size(attention.dtype());
    return fresh + warps * rows * (width + 4) * sizeof(float);
  }
  if (shape.stages == 0) return warps * rows * joined;
  const std::uint64_t row = 8 * (width / 8 | 1U) * Size(attention.dtype());
  const std::uint64_t masks = attention.mask ? (rows * (kKeys / 2 + 1) * 4 + 15) / 16 * 16 : 0;  // of a tile
  const std::uint64_t key = attention.codes ? width : row;                                       // in a stage
  const std::uint64_t numbers = attention.codes ? kKeys * 2 * row : 0;                           // of a tile
  const std::uint64_t warp = std::max(shape.stages * (kKeys * 2 * key + masks) + numbers, kKeys * joined);
  return kKeys * row + warps * warp;
}

constexpr std::int64_t kEight = 8;  // elements of a product's columns

// Bytes from a row to the next, an odd number of 16.
std::uint64_t Pitch(std::int64_t width, std::uint64_t element) {
  constexpr std::uint64_t kPart = 16;
  const std::uint64_t parts = CeilDiv(width, kEight) * kEight * element / kPart;
  return kPart * (parts | 1U);
}

// Bytes of shared memory that the tile takes where warpgroups multiply (cuda_kernels/flash_attention/hopper_tile.cuh).
std::uint64_t WarpgroupBytes(const FlashAttention& attention, const FlashAttentionVariant& shape,
                             std::uint64_t queries) {
  constexpr std::uint64_t kAligned = 1008;
  constexpr std::uint64_t kBarriers = 16;
  constexpr std::uint64_t kPanel = 64;    // elements of a row
  constexpr std::uint64_t kGroup = 1024;  // of which a warpgroup's queries and results are multiples
  const std::uint64_t row = RoundUp(static_cast<std::uint64_t>(attention.width), kPanel) * 2;
  const std::uint64_t group = RoundUp(kWarpgroupRows * std::max(row, Pitch(attention.width, 2)), kGroup);
  const std::uint64_t tiles = std::uint64_t{2} * shape.stages * shape.keys;
  return kAligned + tiles * row + queries / kWarpgroupRows * group +
         (shape.warpgroups->copier ? kBarriers * shape.stages : 0) + (attention.bias ? tiles : 0);
}

// Bytes of shared memory that the tile takes (cuda_kernels/flash_attention/).
std::uint64_t SharedBytes(const FlashAttention& attention, const Variant& variant) {
  constexpr std::uint64_t kHeldSteps = 8;
  const auto& shape = variant.shape.As<FlashAttentionVariant>();
  if (shape.warpgroups) return WarpgroupBytes(attention, shape, FlashQueries(variant));
  const std::uint64_t element = Size(attention.dtype());
  const std::uint64_t row = Pitch(attention.width, element);
  const std::uint64_t value_row = Pitch(attention.values, element);
  const std::uint64_t queries = FlashQueries(variant) * std::max(row, value_row);
  const std::uint64_t values = shape.keys * value_row;
  const std::uint64_t stage = shape.keys * (row + (attention.bias ? element : 0)) + values;
  if (shape.short_rows) return 2 * (queries + stage);
  const std::uint64_t steps = shape.bands * (CeilDiv(attention.width, kEight) * element / 4) * (shape.exact ? 2U : 1U);
  const bool lends = shape.stages == 1 && steps <= kHeldSteps;
  return lends ? stage - values + std::max(values, queries) : queries + shape.stages * stage;
}

}  // namespace

void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const GroupNorm& /*norm*/,
                      std::vector<Variant>* variants) {
  unsigned next = 0;
  for (const Variant& variant : *variants) {
    const auto& shape = variant.shape.As<GroupNormVariant>();
    const bool split = shape.layout == GroupNormLayout::kSplit;
    if (shape.launch != next || (next > 0 && !split))
      json.Fail("have a split variant whose launches are not all there");
    next = split ? (next + 1) % kGroupNormLaunches : 0;
  }
  if (next != 0) json.Fail("have a split variant whose launches are not all there");
  CheckNotEmpty(json, has_fatbin, *variants);
}

Variant ReadSqueezeExciteVariant(const JsonReader& json, const SqueezeExcite& meaning) {
  if (!json.Has("layout")) return ReadFactorsVariant(json, meaning);
  if (!meaning.depthwise) json["layout"].Fail("is of a depthwise convolution, which the kernel has none of");
  return ReadDepthwiseVariant(json, *meaning.depthwise);
}

void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const SqueezeExcite& meaning,
                      std::vector<Variant>* variants) {
  if (!has_fatbin) return;
  const std::size_t products = meaning.depthwise ? kSqueezeExciteMap : kSqueezeExciteFold;
  bool ordered = meaning.depthwise ? variants->size() > products : variants->size() == products;
  for (std::size_t k = 0; k < variants->size(); ++k) {
    ordered = ordered && (*variants)[k].shape.Is<DepthwiseVariant>() == (k >= products);
  }
  if (!ordered) json.Fail("are not the products, followed by those of the map");
}

void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const Experts& /*experts*/,
                      std::vector<Variant>* variants) {
  if (!has_fatbin) return;
  if (variants->size() != kExpertsLaunches) json.Fail("are not the " + std::to_string(kExpertsLaunches) + " launches");
  for (std::size_t k = 0; k < variants->size(); ++k) {
    const auto& tile = (*variants)[k].shape.As<ExpertsVariant>();
    bool multiplies = k < kExpertsActivate;
    for (const ExpertsForm& form : kExpertsForms) multiplies = multiplies && k != form.route;
    // A half of the columns is 16 for each warp.
    bool good = tile.rows == 0;
    if (multiplies) good = tile.rows >= 16 && tile.columns >= 32 && tile.columns % 32 == 0 && tile.depth >= 16;
    if (!good) json.Fail("have sides of tiles that do not fit their launches");
  }
}

Variant ReadGemmVariant(const JsonReader& json, const Gemm& gemm) {
  if (gemm.packed) return ReadPackedVariant(json, gemm);
  if (json.Has("role")) {
    const bool tiles = json["role"].Text() == "tiles";
    return tiles ? ReadTilesVariant(json, gemm) : ReadActivationVariant(json, gemm);
  }
  const bool widens = gemm.has_float8_operands() && !json.Has("rows");
  return widens ? ReadWidenVariant(json, gemm) : ReadFewRowsVariant(json, gemm);
}

void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const Gemm& gemm, std::vector<Variant>* variants) {
  if (!has_fatbin) return variants->clear();
  const auto count = [&](const auto& is) { return std::count_if(variants->begin(), variants->end(), is); };
  const auto packed = [&](PackedRole role) {
    return count([&](const Variant& v) { return v.shape.As<PackedVariant>().role == role; });
  };
  if (gemm.packed && packed(PackedRole::kFloats) != 1)
    json.Fail("has not one entry point that turns codes into floats");
  if (gemm.packed && packed(PackedRole::kGate) != (gemm.gate ? 1 : 0)) {
    json.Fail("has not the entry points for a gate that it needs");
  }
  const auto activates = [](const Variant& v) { return v.shape.Is<ActivationVariant>(); };
  if (gemm.activates_apart() && count(activates) != 1) json.Fail("has not one entry point for its activation");
  if (!gemm.has_float8_operands()) return;
  const auto is_for_few_rows = [](const Variant& v) { return v.shape.Is<FewRowsVariant>(); };
  const auto first = std::find_if(variants->begin(), variants->end(), is_for_few_rows);
  if (first - variants->begin() != 1 || !std::all_of(first, variants->end(), is_for_few_rows)) {
    json.Fail("has " + std::to_string(variants->size()) +
              " entries, not the one that widens codes, followed by those for few rows");
  }
}

Variant ReadConvolutionVariant(const JsonReader& json, const Convolution& convolution) {
  return convolution.codes ? ReadCodedConvolutionVariant(json, convolution)
                           : ReadDenseConvolutionVariant(json, convolution);
}

void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const Convolution& convolution,
                      std::vector<Variant>* variants) {
  if (!has_fatbin) return variants->clear();  // cuDNN runs what it has kernels for
  if (variants->empty() && convolution.needs_own_kernel()) {
    json.Fail("has no entry point for codes that cuDNN does not take");
  }
}

void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const Block& block, std::vector<Variant>* variants) {
  for (const Variant& variant : *variants) {
    const auto step = static_cast<std::size_t>(variant.shape.As<BlockVariant>().step);
    if (step >= block.steps.size() || block.steps[step].group != 1) {
      json.Fail("have in \"step\" of " + variant.symbol + " no convolution that a kernel of ours runs");
    }
  }
  if (!has_fatbin) variants->clear();  // cuDNN runs all
}

void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const TokenAttention& attention,
                      std::vector<Variant>* variants) {
  if (has_fatbin && variants->size() < kAttentionLaunches) json.Fail("are not the two launches");
  for (const Variant& variant : *variants) {
    if (variant.shared == 0 || variant.shared == SharedBytes(attention, variant)) continue;
    json.Fail("have in \"shared\" of " + variant.symbol + " not what the tiles take");
  }
}

unsigned FlashQueries(const Variant& variant) {
  const auto& shape = variant.shape.As<FlashAttentionVariant>();
  if (shape.warpgroups) return static_cast<unsigned>(shape.warpgroups->count) * kWarpgroupRows;
  return variant.threads / kWarpThreads * shape.bands * kFlashRows;
}

void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const FlashAttention& attention,
                      std::vector<Variant>* variants) {
  for (const Variant& variant : *variants) {
    if (variant.shared == SharedBytes(attention, variant)) continue;
    json.Fail("have in \"shared\" of " + variant.symbol + " not what the tile takes");
  }
  CheckNotEmpty(json, has_fatbin, *variants);
}

}  // namespace onnxopt
