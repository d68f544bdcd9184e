// Attention of many queries in kernels.json.
#pragma once

#include <optional>
#include <vector>

#include "kernel_file/kernel.h"
#include "program/generated/flash_attention.h"
#include "support/json_reader.h"

namespace onnxopt {

// What only entry points of these kernels have; onnxopt/kinds/flash_attention/entry_points.py says what each means.
struct FlashWarpgroups {
  unsigned count = 1;
  unsigned blocks = 1;
  double wave = 0;    // microseconds
  double scores = 0;  // for a million of them
};

struct FlashTileShape {
  unsigned keys = 16;
  bool short_rows = false;
  unsigned access = 2;
  unsigned queries = 16;                      // of a block
  unsigned bands = 1;                         // of 16 queries of a warp
  std::optional<FlashWarpgroups> warpgroups;  // of entry points that run on Hopper alone
};

constexpr unsigned kFlashRows = 16;      // queries of a warp's band
constexpr unsigned kWarpgroupRows = 64;  // of a warpgroup

Variant ReadFlashAttentionVariant(const JsonReader& json, const FlashAttention& attention);

}  // namespace onnxopt
