#include "kernel_file/entry_points/attention.h"

#include <algorithm>
#include <string>

#include "kernel_file/fields.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kMostTokens = 16;
constexpr std::uint64_t kMostStages = 8;
constexpr std::uint64_t kMostShared = 227 << 10;  // bytes of shared memory that a block can have
constexpr std::uint64_t kKeys = 16;               // of a tile

// Bytes of shared memory of a block that attends (cuda_kernels/attention/).
std::uint64_t SharedBytes(const TokenAttention& attention, const Variant& variant, const AttentionShape& shape) {
  const auto width = static_cast<std::uint64_t>(attention.width);
  const std::uint64_t found = (width + 2) * sizeof(float);
  const std::uint64_t warps = variant.threads / kWarpThreads;
  const auto rows = static_cast<std::uint64_t>(attention.mask ? attention.rows : attention.heads / attention.groups);
  if (shape.registers) {
    const std::uint64_t fresh = 2 * kMostTokens * width * Size(attention.dtype());
    return fresh + warps * rows * (width + 4) * sizeof(float);
  }
  if (shape.stages == 0) return warps * rows * found;
  const std::uint64_t row = 8 * (width / 8 | 1U) * Size(attention.dtype());
  const std::uint64_t masks = attention.mask ? (rows * (kKeys / 2 + 1) * 4 + 15) / 16 * 16 : 0;  // of a tile
  const std::uint64_t key = attention.codes ? width : row;                                       // in a stage
  const std::uint64_t numbers = attention.codes ? kKeys * 2 * row : 0;                           // of a tile
  const std::uint64_t of_warp = std::max(shape.stages * (kKeys * 2 * key + masks) + numbers, kKeys * found);
  return kKeys * row + warps * of_warp;
}

}  // namespace

Variant ReadAttentionVariant(const JsonReader& json, const TokenAttention& attention) {
  Variant variant = ReadVariant(json);
  variant.waits = json["waits"].Flag();
  if (variant.threads % kWarpThreads != 0) json["threads"].Fail("is no multiple of a warp");
  const auto has = [&](const char* flag) { return json.Has(flag) && json[flag].Flag(); };
  const AttentionShape shape{json["stages"].Number(0, kMostStages), has("registers"), has("joins")};
  if (shape.registers && (shape.stages != 1 || !attention.mask || attention.codes)) {
    json["registers"].Fail("holds one tile, of masked attention to a cache without codes");
  }
  variant.shared = static_cast<unsigned>(json["shared"].Number(0, kMostShared));
  if (variant.shared != 0 && variant.shared != SharedBytes(attention, variant, shape)) {
    json["shared"].Fail("is not what the tiles take");
  }
  variant.shape.Set(shape);
  return variant;
}

void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const TokenAttention& /*attention*/,
                      std::vector<Variant>* variants) {
  if (has_fatbin && variants->size() < kAttentionLaunches) json.Fail("are not the two launches");
}

}  // namespace onnxopt
