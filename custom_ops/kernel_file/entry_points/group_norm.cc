#include "kernel_file/entry_points/group_norm.h"

#include <string>

#include "kernel_file/fields.h"
#include "kernel_file/kind_reader.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kMostHeld = 64;
constexpr std::uint64_t kMostCluster = 16;

GroupNormLayout ReadLayout(const JsonReader& json) {
  const std::string text = json.Text();
  if (text == "held") return GroupNormLayout::kHeld;
  if (text == "split") return GroupNormLayout::kSplit;
  if (text == "looped") return GroupNormLayout::kLooped;
  json.Fail("is \"" + text + "\", which is no layout");
}

}  // namespace

Variant ReadGroupNormVariant(const JsonReader& json, const GroupNorm& norm) {
  Variant variant = ReadVariant(json);
  variant.waits = json["waits"].Flag();
  variant.cluster = static_cast<unsigned>(json["cluster"].Number(1, kMostCluster));
  GroupNormShape shape;
  shape.layout = ReadLayout(json["layout"]);
  shape.columns = static_cast<unsigned>(json["columns"].Number(1, variant.threads));
  const bool held = shape.layout == GroupNormLayout::kHeld;
  shape.held = static_cast<unsigned>(json["held"].Number(held ? 1 : 0, held ? kMostHeld : 0));
  const bool split = shape.layout == GroupNormLayout::kSplit;
  shape.launch = static_cast<unsigned>(json["launch"].Number(0, split ? kGroupNormLaunches - 1 : 0));
  if (variant.threads % kWarpThreads != 0) json["threads"].Fail("is no multiple of a warp");
  if (!held && variant.cluster != 1) json["cluster"].Fail("is for blocks that hold their elements");
  const std::int64_t slab = std::int64_t{variant.vector} * shape.columns;
  if (norm.channels % slab != 0 || slab % norm.group() != 0) json["columns"].Fail("are not those of whole groups");
  variant.shape.Set(shape);
  return variant;
}

void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const GroupNorm& /*norm*/,
                      std::vector<Variant>* variants) {
  unsigned next = 0;
  for (const Variant& variant : *variants) {
    const auto& shape = variant.shape.As<GroupNormShape>();
    const bool split = shape.layout == GroupNormLayout::kSplit;
    if (shape.launch != next || (next > 0 && !split))
      json.Fail("have a split variant whose launches are not all there");
    next = split ? (next + 1) % kGroupNormLaunches : 0;
  }
  if (next != 0) json.Fail("have a split variant whose launches are not all there");
  CheckNotEmpty(json, has_fatbin, *variants);
}

}  // namespace onnxopt
