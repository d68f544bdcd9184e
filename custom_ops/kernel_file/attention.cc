#include "kernel_file/attention.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernel_file/fields.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kMostHeads = 4096;
constexpr std::uint64_t kMostWidth = 512;
constexpr std::uint64_t kMostTokens = 16;
constexpr std::size_t kOutputs = 3;
constexpr std::uint64_t kMostStages = 8;
constexpr std::uint64_t kMostShared = 227 << 10;  // bytes of shared memory that a block can have
constexpr std::uint64_t kKeys = 16;               // of a tile

// Bytes of shared memory of a block that attends (cuda_kernels/attention/).
std::uint64_t SharedBytes(const TokenAttention& attention, const Variant& variant, const AttentionShape& shape) {
  const auto width = static_cast<std::uint64_t>(attention.width);
  const std::uint64_t found = (width + 2) * sizeof(float);
  const std::uint64_t warps = variant.threads / kWarpThreads;
  const auto rows = static_cast<std::uint64_t>(attention.mask ? attention.rows : attention.heads / attention.groups);
  if (shape.registers) {
    const std::uint64_t fresh = 2 * kMostTokens * width * Size(attention.dtype);
    return fresh + warps * rows * (width + 4) * sizeof(float);
  }
  if (shape.stages == 0) return warps * rows * found;
  const std::uint64_t row = 8 * (width / 8 | 1U) * Size(attention.dtype);
  const std::uint64_t masks = attention.mask ? (rows * (kKeys / 2 + 1) * 4 + 15) / 16 * 16 : 0;  // of a tile
  const std::uint64_t key = attention.codes ? width : row;                                       // in a stage
  const std::uint64_t numbers = attention.codes ? kKeys * 2 * row : 0;                           // of a tile
  const std::uint64_t of_warp = std::max(shape.stages * (kKeys * 2 * key + masks) + numbers, kKeys * found);
  return kKeys * row + warps * of_warp;
}

ScalePer ReadPer(const JsonReader& json) {
  const std::string name = json.Text();
  if (name == "tensor") return ScalePer::kTensor;
  if (name == "head") return ScalePer::kHead;
  if (name == "element") return ScalePer::kElement;
  if (name == "channel") return ScalePer::kChannel;
  json.Fail("is not tensor, head, element or channel");
}

CacheCodes ReadCodes(const JsonReader& json, const std::vector<Dtype>& inputs, std::size_t past) {
  CacheCodes codes;
  const auto position = [&](const char* field) {
    return static_cast<std::size_t>(json[field].Number(0, inputs.size() - 1));
  };
  codes.k_scale = position("k_scale");
  codes.v_scale = position("v_scale");
  codes.k_per = ReadPer(json["k_per"]);
  codes.v_per = ReadPer(json["v_per"]);
  codes.by_reciprocal = json["by_reciprocal"].Flag();
  codes.dtype = inputs[past];
  codes.scales = inputs[codes.k_scale];
  if (codes.dtype != Dtype::kInt8 && codes.dtype != Dtype::kFloat8E4M3) json.Fail("are not int8 or float8e4m3fn");
  if (!IsFloat(codes.scales) || inputs[codes.v_scale] != codes.scales) json.Fail("have scales of no one float dtype");
  return codes;
}

// The dtype that input k must have.
Dtype Wanted(const TokenAttention& attention, std::size_t k) {
  if (attention.slots == k) return Dtype::kInt64;
  if (k == attention.past_k || k == attention.past_v) return attention.Cached();
  const bool scale = attention.codes && (k == attention.codes->k_scale || k == attention.codes->v_scale);
  return scale ? attention.codes->scales : attention.dtype;
}

}  // namespace

TokenAttention ReadTokenAttention(const JsonReader& json, const std::vector<Dtype>& inputs,
                                  const std::vector<Dtype>& outputs) {
  TokenAttention attention;
  attention.inputs = inputs.size();
  if (json.Has("k") != json.Has("v")) json.Fail("has one of k and v");
  if (json.Has("mask") != json.Has("tokens")) json.Fail("has one of mask and tokens");
  if (json.Has("mask") && !json.Has("k")) json.Fail("has a mask, but no k");
  if (json.Has("slots") && !json.Has("mask")) json.Fail("has slots, but no mask");
  std::size_t count = 3;
  for (const char* field : {"k", "v", "mask", "slots"}) count += json.Has(field) ? 1 : 0;
  if (json.Has("codes")) {
    const JsonReader codes = json["codes"];
    count += codes["k_scale"].value() == codes["v_scale"].value() ? 1 : 2;
  }
  if (inputs.size() != count) json["inputs"].Fail("are not " + std::to_string(count));
  if (outputs.size() != kOutputs) json["outputs"].Fail("are not " + std::to_string(kOutputs));
  const auto position = [&](const char* field) { return static_cast<std::size_t>(json[field].Number(0, count - 1)); };
  attention.q = position("q");
  if (json.Has("k")) attention.k = position("k");
  if (json.Has("v")) attention.v = position("v");
  attention.past_k = position("past_k");
  attention.past_v = position("past_v");
  const auto number = [&](const char* field, std::uint64_t most) {
    return static_cast<std::int64_t>(json[field].Number(1, most));
  };
  attention.heads = number("heads", kMostHeads);
  attention.groups = number("groups", kMostHeads);
  attention.width = number("width", kMostWidth);
  if (attention.heads % attention.groups != 0) json["heads"].Fail("is no multiple of groups");
  if (json.Has("mask")) {
    attention.mask = position("mask");
    attention.tokens = static_cast<std::int64_t>(json["tokens"].Number(0, kMostTokens));
    if (attention.tokens == 0 && json.Has("slots")) json["tokens"].Fail("is 0, and slots take a known number");
    const auto most = attention.tokens != 0 ? attention.tokens : static_cast<std::int64_t>(kMostTokens);
    const std::int64_t rows = most * (attention.heads / attention.groups);
    attention.rows = number("rows", static_cast<std::uint64_t>(rows));
  }
  if (json.Has("slots")) attention.slots = position("slots");
  if (!json["scale"].value().is_number()) json["scale"].Fail("is not a number");
  attention.scale = json["scale"].value().get<float>();
  if (!std::isfinite(attention.scale)) json["scale"].Fail("is not a finite float32");
  attention.dtype = outputs[0];
  if (json.Has("codes")) attention.codes = ReadCodes(json["codes"], inputs, attention.past_k);
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    if (inputs[k] != Wanted(attention, k)) {
      json["inputs"].Fail("differ from the output's dtype, slots from int64, or the caches from each other");
    }
  }
  for (std::size_t k = 1; k < kOutputs; ++k) {
    if (outputs[k] != attention.Cached()) json["outputs"].Fail("differ from the cache in dtype");
  }
  if (!IsFloat(attention.dtype) || Size(attention.dtype) != 2) {
    json["outputs"].Fail("is " + std::string(Row(attention.dtype).name) + ", no float of 16 bits");
  }
  return attention;
}

Variant ReadAttentionVariant(const JsonReader& json, const TokenAttention& attention) {
  Variant variant = ReadVariant(json);
  variant.waits = json["waits"].Flag();
  if (variant.threads % kWarpThreads != 0) json["threads"].Fail("is no multiple of a warp");
  const auto has = [&](const char* flag) { return json.Has(flag) && json[flag].Flag(); };
  const AttentionShape shape{json["stages"].Number(0, kMostStages), has("registers"), has("joins")};
  if (shape.registers && (shape.stages != 1 || !attention.mask || attention.codes)) {
    json["registers"].Fail("holds one tile, of masked attention to a cache without codes");
  }
  variant.shared = static_cast<unsigned>(json["shared"].Number(0, kMostShared));
  if (variant.shared != 0 && variant.shared != SharedBytes(attention, variant, shape)) {
    json["shared"].Fail("is not what the tiles take");
  }
  variant.shape.Set(shape);
  return variant;
}

}  // namespace onnxopt
