#include "kernel_file/entry_points/depthwise.h"

#include <limits>
#include <string>

#include "kernel_file/fields.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kMost = std::numeric_limits<std::int32_t>::max();
constexpr std::uint64_t kMostTile = 16;
constexpr std::uint64_t kMaxShared = std::uint64_t{1} << 20U;
constexpr unsigned kBandedVector = 8;
constexpr std::uint64_t kMostExpandedTile = 32;  // rows and columns of outputs
constexpr unsigned kExpandedMost = 8;            // chunks of channels at a time
constexpr std::int64_t kExpandedAccess = 8;      // elements

DepthwiseLayout ReadLayout(const JsonReader& json) {
  const std::string text = json.Text();
  if (text == "held") return DepthwiseLayout::kHeld;
  if (text == "walking") return DepthwiseLayout::kWalking;
  if (text == "banded") return DepthwiseLayout::kBanded;
  if (text == "expanded") return DepthwiseLayout::kExpanded;
  json.Fail("is \"" + text + "\", which is no layout");
}

// A thread for each vector of a round. A vector is a power of 2 of at most 16 bytes.
void CheckExpanded(const JsonReader& json, const Variant& variant, const DepthwiseShape& shape) {
  const unsigned groups = shape.chunks * static_cast<unsigned>(kExpandedAccess) / variant.vector;
  if (variant.threads < groups) json["threads"].Fail("are fewer than a round's vectors of channels");
}

}  // namespace

Variant ReadDepthwiseVariant(const JsonReader& json, const Depthwise& depthwise) {
  Variant variant = ReadVariant(json);
  variant.waits = json["waits"].Flag();
  variant.shared = static_cast<unsigned>(json["shared"].Number(0, kMaxShared));
  if (variant.threads % kWarpThreads != 0) json["threads"].Fail("is no multiple of a warp");
  const auto number = [&](const char* field, std::uint64_t low, std::uint64_t most) {
    return static_cast<unsigned>(json[field].Number(low, most));
  };
  DepthwiseShape shape;
  shape.layout = ReadLayout(json["layout"]);
  const bool expanded = shape.layout == DepthwiseLayout::kExpanded;
  if (expanded != depthwise.expansion.has_value()) json["layout"].Fail("does not fit the kernel's meaning");
  shape.down = number("down", 1, expanded ? kMostExpandedTile : kMostTile);
  shape.across = number("across", 1, expanded ? kMostExpandedTile : kMostTile);
  shape.narrowest = number("narrowest", 1, kMost);
  shape.widest = number("widest", 0, kMost);
  if (json.Has("fewest")) shape.fewest = number("fewest", 0, kMost);
  if (shape.layout == DepthwiseLayout::kBanded) {
    shape.chunks = number("chunks", 1, 4);
    shape.images = number("images", 1, 4);
    if (variant.vector != kBandedVector || Size(depthwise.dtype()) != 2 || depthwise.output() != depthwise.dtype()) {
      json["layout"].Fail("is \"banded\", which is for 16-bit floats in vectors of 8");
    }
    if (kMostTile % (shape.across * shape.images) != 0) json["across"].Fail("does not divide a product's rows");
  } else if (variant.vector * Size(depthwise.dtype()) > 16) {
    json["vector"].Fail("is wider than one access");
  }
  if (expanded) {
    shape.chunks = number("chunks", 1, kExpandedMost);
    CheckExpanded(json, variant, shape);
  }
  if (shape.layout == DepthwiseLayout::kWalking && shape.down != 1) json["down"].Fail("is not 1");
  variant.shape.Set(shape);
  return variant;
}

}  // namespace onnxopt
