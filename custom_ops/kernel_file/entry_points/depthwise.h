// Depthwise convolutions in kernels.json.
#pragma once

#include <vector>

#include "kernel_file/kernel.h"
#include "program/generated/depthwise.h"
#include "support/json_reader.h"

namespace onnxopt {

enum class DepthwiseLayout : std::uint8_t { kHeld, kWalking, kBanded, kExpanded };

// What only entry points of depthwise kernels have; onnxopt/kinds/depthwise/tiles.py says what each means.
struct DepthwiseShape {
  DepthwiseLayout layout = DepthwiseLayout::kHeld;
  unsigned down = 1;
  unsigned across = 1;
  unsigned chunks = 0;
  unsigned images = 1;
  std::int64_t narrowest = 1;
  std::int64_t widest = 0;  // 0: any
  std::uint64_t fewest = 0;
};

Variant ReadDepthwiseVariant(const JsonReader& json, const Depthwise& depthwise);

}  // namespace onnxopt
