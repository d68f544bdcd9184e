#include "kernel_file/entry_points/flash_attention.h"

#include <algorithm>
#include <string>

#include "kernel_file/fields.h"
#include "support/math.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kMostKeys = 1024;  // of a tile
constexpr std::uint64_t kMostShared = 256 << 10;
constexpr std::uint64_t kMostAccess = 16;
constexpr std::uint64_t kMostStages = 2;
constexpr std::uint64_t kMostBands = 2;
constexpr std::uint64_t kMostStagesOfWarpgroups = 4;
constexpr std::uint64_t kMostWarpgroups = 4;
constexpr std::uint64_t kMostBlocks = 16;  // of a multiprocessor

constexpr std::int64_t kEight = 8;  // elements of 16 bytes

// Elements from a row to the next, an odd number of 16 bytes.
std::uint64_t Pitch(std::int64_t width) { return kEight * (CeilDiv(width, kEight) | 1U); }

// Bytes of shared memory that the tile takes (cuda_kernels/flash_attention/).
std::uint64_t SharedBytes(const FlashAttention& attention, const FlashTileShape& shape, std::uint64_t stages) {
  constexpr std::uint64_t kHeldSteps = 8;
  const std::uint64_t row = Pitch(attention.width);
  const std::uint64_t value_row = Pitch(attention.values);
  const std::uint64_t queries = shape.queries * std::max(row, value_row) * 2;
  const std::uint64_t values = shape.keys * value_row * 2;
  const std::uint64_t stage = shape.keys * (row + (attention.bias ? 1 : 0)) * 2 + values;
  if (shape.short_rows) return 2 * (queries + stage);
  const bool lends = stages == 1 && shape.bands * (CeilDiv(attention.width, kEight) / 2) <= kHeldSteps;
  return lends ? stage - values + std::max(values, queries) : queries + stages * stage;
}

// The same where warpgroups multiply (cuda_kernels/flash_attention/hopper_tile.cuh).
std::uint64_t WarpgroupBytes(const FlashAttention& attention, std::uint64_t queries, std::uint64_t keys,
                             std::uint64_t stages, bool copier) {
  constexpr std::uint64_t kAligned = 1008;
  constexpr std::uint64_t kBarriers = 16;
  constexpr std::uint64_t kPanel = 64;    // elements of a row
  constexpr std::uint64_t kGroup = 1024;  // of which a warpgroup's queries and results are multiples
  const auto width = static_cast<std::uint64_t>(attention.width);
  const std::uint64_t row = RoundUp(width, kPanel) * 2;
  const std::uint64_t of_group = kWarpgroupRows * std::max(row, Pitch(attention.width) * 2);
  const std::uint64_t groups = queries / kWarpgroupRows * RoundUp(of_group, kGroup);
  const std::uint64_t bias = attention.bias ? 2 * stages * keys : 0;
  return kAligned + 2 * stages * keys * row + groups + (copier ? kBarriers * stages : 0) + bias;
}

double ReadMicroseconds(const JsonReader& json) {
  if (!json.value().is_number() || !(json.value().get<double>() > 0)) json.Fail("is not a number above 0");
  return json.value().get<double>();
}

// The part of an entry point for Hopper that others do not have. threads: of its block.
FlashWarpgroups ReadWarpgroups(const JsonReader& json, const FlashAttention& attention, unsigned threads) {
  FlashWarpgroups warpgroups;
  warpgroups.count = static_cast<unsigned>(json["count"].Number(1, kMostWarpgroups));
  const unsigned all = warpgroups.count + (json["copier"].Flag() ? 1 : 0);
  if (threads != 4 * kWarpThreads * all) json["count"].Fail("is not that of the block's threads");
  warpgroups.blocks = static_cast<unsigned>(json["blocks"].Number(1, kMostBlocks));
  warpgroups.wave = ReadMicroseconds(json["wave"]);
  warpgroups.scores = ReadMicroseconds(json["scores"]);
  if (attention.width != attention.values || attention.width % kEight != 0) {
    json["count"].Fail("goes with values as wide as keys, a multiple of 8 elements");
  }
  if (attention.cap && attention.bias) json["count"].Fail("goes with no cap of biased scores");
  return warpgroups;
}

}  // namespace

Variant ReadFlashAttentionVariant(const JsonReader& json, const FlashAttention& attention) {
  Variant variant = ReadVariant(json);
  variant.waits = json["waits"].Flag();
  if (variant.threads % kWarpThreads != 0) json["threads"].Fail("is no multiple of a warp");
  FlashTileShape shape;
  shape.keys = static_cast<unsigned>(json["keys"].Number(kFlashRows, kMostKeys));
  if (shape.keys % kFlashRows != 0) json["keys"].Fail("is no multiple of " + std::to_string(kFlashRows));
  shape.short_rows = json["short"].Flag();
  shape.access = static_cast<unsigned>(json["access"].Number(2, kMostAccess));
  if ((shape.access & (shape.access - 1)) != 0) json["access"].Fail("is no power of 2");
  const auto bytes = [&](std::int64_t elements) { return static_cast<std::uint64_t>(elements) * 2 % shape.access; };
  for (const Heads& heads : {attention.q, attention.k, attention.v}) {
    if (bytes(heads.row) + bytes(heads.first) + bytes(heads.step) != 0) json["access"].Fail("does not divide a row");
  }
  if (bytes(attention.width) + bytes(attention.values) != 0) json["access"].Fail("does not divide a head");
  variant.shared = static_cast<unsigned>(json["shared"].Number(0, kMostShared));
  std::uint64_t shared = 0;
  if (json.Has("warpgroups") && !json["warpgroups"].value().is_null()) {
    const JsonReader warpgroups = json["warpgroups"];
    shape.warpgroups = ReadWarpgroups(warpgroups, attention, variant.threads);
    if (shape.access != kMostAccess) json["access"].Fail("is not 16");
    shape.queries = shape.warpgroups->count * kWarpgroupRows;
    const std::uint64_t stages = json["stages"].Number(1, kMostStagesOfWarpgroups);
    shared = WarpgroupBytes(attention, shape.queries, shape.keys, stages, warpgroups["copier"].Flag());
  } else {
    shape.bands = static_cast<unsigned>(json["bands"].Number(1, kMostBands));
    shape.queries = variant.threads / kWarpThreads * shape.bands * kFlashRows;
    shared = SharedBytes(attention, shape, json["stages"].Number(1, kMostStages));
  }
  if (variant.shared != shared) json["shared"].Fail("is not what the tile takes");
  variant.shape.Set(shape);
  return variant;
}

}  // namespace onnxopt
