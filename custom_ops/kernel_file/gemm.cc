#include "kernel_file/gemm.h"

#include <cmath>
#include <string>

#include "gemm/widen_codes_abi.h"
#include "kernel_file/fields.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kMaxFewRows = 64;
constexpr std::size_t kAccessBytes = 16;  // of one load
constexpr std::uint64_t kLeastGroup = 16;
constexpr std::uint64_t kMostGroup = 256;
constexpr std::uint64_t kMostColumns = 256;       // of a block
constexpr std::uint64_t kPanelColumns = 64;       // columns that are brought to shared memory together
constexpr unsigned kLargeThreads = 384;           // of a block of a product of many rows
constexpr std::uint64_t kMostShared = 227 << 10;  // bytes of shared memory that a block can have

float Scale(const JsonReader& json) {
  if (!json.value().is_number()) json.Fail("is not a number");
  const auto value = json.value().get<float>();
  if (!std::isfinite(value)) json.Fail("is not a finite float32");
  return value;
}

Activation ReadActivation(const JsonReader& json) {
  const std::string text = json.Text();
  if (text == "none") return Activation::kNone;
  if (text == "relu") return Activation::kRelu;
  if (text == "gelu") return Activation::kGelu;
  if (text == "gelu_tanh") return Activation::kGeluTanh;
  json.Fail("is \"" + text + "\", not none, relu, gelu or gelu_tanh");
}

Activation ReadGate(const JsonReader& json) {
  const std::string text = json.Text();
  if (text == "silu") return Activation::kSilu;
  if (text == "gelu_tanh") return Activation::kGeluTanh;
  json.Fail("is \"" + text + "\", not silu or gelu_tanh");
}

PackedRole ReadRole(const JsonReader& json) {
  const std::string text = json.Text();
  if (text == "codes") return PackedRole::kCodes;
  if (text == "floats") return PackedRole::kFloats;
  if (text == "gate") return PackedRole::kGate;
  json.Fail("is \"" + text + "\", not codes, floats or gate");
}

void MarkUnread(const JsonReader& json, std::vector<bool>* read) {
  const auto at = static_cast<std::size_t>(json.Number(0, read->size() - 1));
  if ((*read)[at]) json.Fail("is an input that the product reads");
  (*read)[at] = true;
}

PackedIntegers ReadPacked(const JsonReader& json, std::size_t inputs) {
  PackedIntegers codes;
  codes.bits = static_cast<unsigned>(json["bits"].Number(2, 8));
  if (codes.bits != 2 && codes.bits != 4 && codes.bits != 8) json["bits"].Fail("is neither 2, 4 nor 8");
  codes.group =
      static_cast<unsigned>(json["group"].Number(codes.bits == 2 ? 2 * kLeastGroup : kLeastGroup, kMostGroup));
  if ((codes.group & (codes.group - 1)) != 0) json["group"].Fail("is no power of two");
  codes.scales = static_cast<std::size_t>(json["scales"].Number(0, inputs - 1));
  if (json.Has("zeros")) codes.zeros = static_cast<std::size_t>(json["zeros"].Number(0, inputs - 1));
  return codes;
}

void CheckCodes(const JsonReader& json, const std::vector<Dtype>& inputs, Gemm* gemm) {
  PackedIntegers& codes = *gemm->packed;
  const bool floats = gemm->operands == Dtype::kFloat16 || gemm->operands == Dtype::kBfloat16;
  if (!floats || gemm->operands != gemm->dtype) json["inputs"].Fail("do not go with codes");
  if (inputs[gemm->b] != Dtype::kUint8) json["inputs"].Fail("have codes that are not uint8");
  if (inputs[codes.scales] != gemm->dtype) json["inputs"].Fail("have scales of another dtype");
  if (!gemm->transpose_b || gemm->transpose_a) json.Fail("does not go with a product of these transposes");
  if (!codes.zeros) return;
  codes.packed_zeros = inputs[*codes.zeros] == Dtype::kUint8;
  if (!codes.packed_zeros && inputs[*codes.zeros] != gemm->dtype) json["inputs"].Fail("have zeros of another dtype");
}

void CheckDtypes(const JsonReader& json, const std::vector<Dtype>& inputs, const std::vector<Dtype>& outputs,
                 Gemm* gemm) {
  gemm->dtype = outputs[0];
  gemm->operands = inputs[gemm->a];
  const bool floats = IsFloat(gemm->dtype);
  if (!floats) json["outputs"].Fail("is " + std::string(Row(gemm->dtype).name) + ", no float of 16 or 32 bits");
  const bool widens = (gemm->operands == Dtype::kFloat16 && gemm->dtype == Dtype::kFloat32) ||
                      (HasFloat8Operands(*gemm) && gemm->dtype != Dtype::kBfloat16);
  if (gemm->packed) {
    CheckCodes(json, inputs, gemm);
  } else if (inputs[gemm->b] != gemm->operands || (gemm->operands != gemm->dtype && !widens)) {
    json["inputs"].Fail("differ from the output's dtype");
  }
  if (HasFloat8Operands(*gemm) && (gemm->transpose_a || !gemm->transpose_b)) {
    json["inputs"].Fail("are codes of 8-bit floats, which do not go with these transposes");
  }
  for (const auto& added : {gemm->bias, gemm->residual}) {
    if (added && inputs[*added] != gemm->dtype) json["inputs"].Fail("differ from the output's dtype");
  }
  for (const Dtype dtype : outputs) {
    if (dtype != gemm->dtype) json["outputs"].Fail("differ in dtype");
  }
}

void CheckActivation(const JsonReader& json, const Gemm& gemm) {
  if (!ActivatesBehind(gemm)) return;
  const bool floats = gemm.dtype == Dtype::kFloat16 || gemm.dtype == Dtype::kBfloat16;
  if (!floats || gemm.operands != gemm.dtype || gemm.packed) json["activation"].Fail("does not go with these dtypes");
}

void ReadOperands(const JsonReader& json, std::size_t inputs, Gemm* gemm) {
  gemm->inputs = inputs;
  if (inputs == 0 || inputs > kGemmInputs) json["inputs"].Fail("has " + std::to_string(inputs) + " dtypes");
  std::vector<bool> read(inputs, false);
  const auto position = [&](const char* field) {
    const auto at = static_cast<std::size_t>(json[field].Number(0, inputs - 1));
    read[at] = true;
    return at;
  };
  gemm->a = position("a");
  gemm->b = position("b");
  if (json.Has("bias")) gemm->bias = position("bias");
  if (json.Has("residual")) gemm->residual = position("residual");
  if (json.Has("codes")) {
    gemm->packed = ReadPacked(json["codes"], inputs);
    read[gemm->packed->scales] = true;
    if (gemm->packed->zeros) read[*gemm->packed->zeros] = true;
  }
  if (json.Has("unread")) json["unread"].Each([&](const JsonReader& at) { MarkUnread(at, &read); });
  for (std::size_t k = 0; k < inputs; ++k) {
    if (!read[k]) json["inputs"].Fail("has an input " + std::to_string(k) + " that nothing reads");
  }
}

}  // namespace

Gemm ReadGemm(const JsonReader& json, const std::vector<Dtype>& inputs, const std::vector<Dtype>& outputs) {
  Gemm gemm;
  gemm.transpose_a = json["transpose_a"].Flag();
  gemm.transpose_b = json["transpose_b"].Flag();
  gemm.residual_shape = json["residual_shape"].Flag();
  gemm.alpha = Scale(json["alpha"]);
  gemm.beta = Scale(json["beta"]);
  gemm.activation = ReadActivation(json["activation"]);
  ReadOperands(json, inputs.size(), &gemm);
  if (gemm.residual_shape && !gemm.residual) json["residual_shape"].Fail("is set, and there is no residual");
  gemm.parts = outputs.size();
  const std::string count = "has " + std::to_string(gemm.parts) + " dtypes";
  if (gemm.parts == 0 || gemm.parts > kGemmParts) json["outputs"].Fail(count);
  if (gemm.parts > 1 && (gemm.residual || gemm.transpose_a)) {
    json["outputs"].Fail(count + ", and parts go with neither a residual nor a transposed a");
  }
  if (json.Has("gate")) {
    gemm.gate = ReadGate(json["gate"]);
    const bool plain = !gemm.residual && gemm.activation == Activation::kNone && gemm.parts == 1;
    if (!gemm.packed || !plain) json["gate"].Fail("does not go with this product");
  }
  CheckDtypes(json, inputs, outputs, &gemm);
  CheckActivation(json, gemm);
  return gemm;
}

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
  if (variant.vector != kAccessBytes / Size(gemm.operands)) json["vector"].Fail("is not 16 bytes");
  if (!gemm.transpose_b || gemm.transpose_a) json.Fail("does not go with a product of these transposes");
  if (gemm.operands != gemm.dtype && !HasFloat8Operands(gemm)) {
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
  if (!ActivatesBehind(gemm)) json.Fail("does not go with this product's activation");
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
