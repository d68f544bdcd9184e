// Group norms in kernels.json.
#pragma once

#include "kernel_file/kernel.h"
#include "program/generated/group_norm.h"
#include "support/json_reader.h"

namespace onnxopt {

enum class GroupNormLayout : std::uint8_t { kHeld, kSplit, kLooped };

// What only entry points of group norms have; onnxopt/kinds/group_norm/entry_points.py says what each means.
struct GroupNormShape {
  GroupNormLayout layout = GroupNormLayout::kHeld;
  unsigned columns = 1;
  unsigned held = 0;
  unsigned launch = 0;
};

constexpr unsigned kGroupNormLaunches = 2;  // of a split variant

Variant ReadGroupNormVariant(const JsonReader& json, const GroupNorm& norm);

// Throws Error where the two launches of a split variant are not side by side.
void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const GroupNorm& norm, std::vector<Variant>* variants);

}  // namespace onnxopt
