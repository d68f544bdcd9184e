#include "kernel_file/entry_points/gemm.h"

#include <algorithm>
#include <string>

#include "gemm/widen_codes_abi.h"
#include "kernel_file/fields.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kMaxFewRows = 64;
constexpr std::size_t kAccessBytes = 16;          // of one load
constexpr std::uint64_t kMostColumns = 256;       // of a block
constexpr std::uint64_t kPanelColumns = 64;       // columns that are brought to shared memory together
constexpr unsigned kLargeThreads = 384;           // of a block of a product of many rows
constexpr std::uint64_t kMostShared = 227 << 10;  // bytes of shared memory that a block can have

PackedRole ReadRole(const JsonReader& json) {
  const std::string text = json.Text();
  if (text == "codes") return PackedRole::kCodes;
  if (text == "floats") return PackedRole::kFloats;
  if (text == "gate") return PackedRole::kGate;
  json.Fail("is \"" + text + "\", not codes, floats or gate");
}

// The entry point that widens codes.
Variant ReadWidenVariant(const JsonReader& json) {
  Variant variant = ReadVariant(json);
  variant.waits = json["waits"].Flag();
  if (variant.vector != kWidenedCodes) json["vector"].Fail("is not " + std::to_string(kWidenedCodes));
  return variant;
}

Variant ReadFewRowsVariant(const JsonReader& json, const Gemm& gemm) {
  Variant variant = ReadVariant(json);
  FewRows shape;
  shape.rows = static_cast<unsigned>(json["rows"].Number(1, kMaxFewRows));
  shape.columns = json["columns"].Number(1, kWarpThreads);
  variant.waits = json["waits"].Flag();
  if (variant.threads % kWarpThreads != 0) json["threads"].Fail("is no multiple of a warp");
  if (json.Has("shared")) variant.shared = static_cast<unsigned>(json["shared"].Number(0, kMostShared));
  if (variant.vector != kAccessBytes / Size(gemm.operands())) json["vector"].Fail("is not 16 bytes");
  if (!gemm.transpose_b || gemm.transpose_a) json.Fail("does not go with a product of these transposes");
  if (gemm.operands() != gemm.dtype() && !gemm.has_float8_operands()) {
    json.Fail("does not go with a product of these dtypes");
  }
  variant.shape.Set(shape);
  return variant;
}

Variant ReadPackedVariant(const JsonReader& json) {
  Variant variant = ReadVariant(json);
  PackedRows shape;
  shape.role = ReadRole(json["role"]);
  shape.rows = static_cast<unsigned>(json["rows"].Number(0, kMaxFewRows));
  shape.columns = json["columns"].Number(1, kMostColumns);
  variant.shared = static_cast<unsigned>(json["shared"].Number(0, kMostShared));
  variant.waits = json["waits"].Flag();
  if (variant.threads % kWarpThreads != 0) json["threads"].Fail("is no multiple of a warp");
  variant.shape.Set(shape);
  return variant;
}

// One that has a role, of a product with an activation that cuBLASLt does not have.
Variant ReadActivatingVariant(const JsonReader& json, const Gemm& gemm) {
  Variant variant = ReadVariant(json);
  variant.waits = json["waits"].Flag();
  if (!gemm.activates_apart()) json.Fail("does not go with this product's activation");
  const std::string role = json["role"].Text();
  if (role == "activation") {
    variant.shape.Set(ActivationInPlace{});
    return variant;
  }
  if (role != "tiles") json["role"].Fail("is \"" + role + "\", not tiles or activation");
  variant.shared = static_cast<unsigned>(json["shared"].Number(0, kMostShared));
  LargeTile tile;
  tile.columns = static_cast<std::int64_t>(json["columns"].Number(kPanelColumns, kMostColumns));
  if (tile.columns % kPanelColumns != 0) json["columns"].Fail("is no multiple of " + std::to_string(kPanelColumns));
  if (variant.threads != kLargeThreads) json["threads"].Fail("is not " + std::to_string(kLargeThreads));
  if (gemm.transpose_a) json.Fail("does not go with a product of these transposes");
  variant.shape.Set(tile);
  return variant;
}

}  // namespace

Variant ReadGemmVariant(const JsonReader& json, const Gemm& gemm) {
  if (gemm.packed) return ReadPackedVariant(json);
  if (json.Has("role")) return ReadActivatingVariant(json, gemm);
  const bool widens = gemm.has_float8_operands() && !json.Has("rows");
  return widens ? ReadWidenVariant(json) : ReadFewRowsVariant(json, gemm);
}

void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const Gemm& gemm, std::vector<Variant>* variants) {
  if (!has_fatbin) return variants->clear();
  const auto count = [&](const auto& is) { return std::count_if(variants->begin(), variants->end(), is); };
  const auto packed = [&](PackedRole role) {
    return count([&](const Variant& v) { return v.shape.As<PackedRows>().role == role; });
  };
  if (gemm.packed && packed(PackedRole::kFloats) != 1)
    json.Fail("has not one entry point that turns codes into floats");
  if (gemm.packed && packed(PackedRole::kGate) != (gemm.gate ? 1 : 0)) {
    json.Fail("has not the entry points for a gate that it needs");
  }
  const auto activates = [](const Variant& v) { return v.shape.Is<ActivationInPlace>(); };
  if (gemm.activates_apart() && count(activates) != 1) json.Fail("has not one entry point for its activation");
  if (!gemm.has_float8_operands()) return;
  const auto is_for_few_rows = [](const Variant& v) { return v.shape.Is<FewRows>(); };
  const auto first = std::find_if(variants->begin(), variants->end(), is_for_few_rows);
  if (first - variants->begin() != 1 || !std::all_of(first, variants->end(), is_for_few_rows)) {
    json.Fail("has " + std::to_string(variants->size()) +
              " entries, not the one that widens codes and those for few rows behind it");
  }
}

}  // namespace onnxopt
