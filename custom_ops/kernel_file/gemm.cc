#include "kernel_file/gemm.h"

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

}  // namespace

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

}  // namespace onnxopt
