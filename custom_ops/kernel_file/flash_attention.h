// Attention of many queries in kernels.json.
#pragma once

#include <vector>

#include "kernel_file/kernel.h"
#include "program/flash_attention.h"
#include "support/json_reader.h"

namespace onnxopt {

// What only entry points of these kernels have; onnxopt/kinds/flash_attention/entry_points.py says what each means.
struct FlashTileShape {
  unsigned keys = 16;
  bool short_rows = false;
  unsigned access = 2;
};

constexpr unsigned kFlashRows = 16;  // queries of a warp

// The fields of such a kernel. Throws Error naming the place of what is not as program/flash_attention.py writes it.
FlashAttention ReadFlashAttention(const JsonReader& json, const std::vector<Dtype>& inputs,
                                  const std::vector<Dtype>& outputs);

Variant ReadFlashVariant(const JsonReader& json, const FlashAttention& attention);

}  // namespace onnxopt
