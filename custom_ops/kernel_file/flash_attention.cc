#include "kernel_file/flash_attention.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernel_file/fields.h"
#include "support/math.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kMostHeads = 4096;
constexpr std::uint64_t kMostWidth = 256;
constexpr std::uint64_t kMostRow = std::uint64_t{1} << 24U;
constexpr std::uint64_t kMostWindow = std::uint64_t{1} << 30U;
constexpr std::uint64_t kMostKeys = 1024;  // of a tile
constexpr std::uint64_t kMostShared = 256 << 10;
constexpr std::uint64_t kMostAccess = 16;
constexpr std::uint64_t kMostStages = 2;
constexpr std::uint64_t kMostBands = 2;
constexpr std::uint64_t kMostStagesOfWarpgroups = 4;
constexpr std::uint64_t kMostWarpgroups = 4;
constexpr std::uint64_t kMostBlocks = 16;  // of a multiprocessor
constexpr float kMostCode = 255;           // minus a zero point

Heads ReadHeads(const JsonReader& json, std::size_t inputs, std::int64_t count, std::int64_t width) {
  Heads heads;
  heads.input = json["input"].Number(0, inputs - 1);
  const auto number = [&](const char* field) { return static_cast<std::int64_t>(json[field].Number(0, kMostRow)); };
  heads.row = number("row");
  heads.first = number("first");
  heads.step = number("step");
  if (heads.row == 0) {
    if (heads.first != 0 || heads.step != 0) json["row"].Fail("is 0, which goes with no parts of a token");
    return heads;
  }
  if (count > 1 && heads.step < 1) json["step"].Fail("is 0");
  if (heads.first + (count - 1) * heads.step + width > heads.row) json["row"].Fail("does not hold all heads");
  return heads;
}

AttentionCodes ReadCodes(const JsonReader& json, const FlashAttention& attention) {
  AttentionCodes codes;
  const auto number = [&](const char* field) {
    if (!json[field].value().is_number()) json[field].Fail("is not a number");
    return json[field].value().get<float>();
  };
  codes.step = number("step");
  if (!std::isfinite(codes.step) || codes.step <= 0) json["step"].Fail("is not a float32 above 0");
  const bool limited = json.Has("low") || json.Has("high");
  if (attention.output == Dtype::kFloat8E4M3 && !limited) return codes;
  if (attention.output != Dtype::kFloat16 || attention.dtype != Dtype::kFloat16) {
    json["step"].Fail("is of codes that are neither float16 of float16 nor 8-bit floats");
  }
  const auto limit = [&](const char* field) {
    const float value = number(field);
    if (!(std::fabs(value) <= kMostCode) || value != std::rint(value)) json[field].Fail("is no code of 8 bits");
    return value;
  };
  codes.low = limit("low");
  codes.high = limit("high");
  if (codes.low > codes.high) json["low"].Fail("is above high");
  return codes;
}

constexpr std::int64_t kEight = 8;  // elements of 16 bytes

// Elements from a row to the next, an odd number of 16 bytes.
std::uint64_t Pitch(std::int64_t width) { return kEight * (CeilDiv(width, kEight) | 1U); }

// Bytes of shared memory that the tile takes (cuda_kernels/flash_attention/).
std::uint64_t SharedBytes(const FlashAttention& attention, const FlashTileShape& shape, std::uint64_t stages) {
  constexpr std::uint64_t kHeldSteps = 8;
  const std::uint64_t row = Pitch(attention.width);
  const std::uint64_t value_row = Pitch(attention.values);
  const std::uint64_t queries = shape.queries * std::max(row, value_row) * 2;
  const std::uint64_t values = shape.keys * value_row * 2;
  const std::uint64_t stage = shape.keys * (row + (attention.bias ? 1 : 0)) * 2 + values;
  if (shape.short_rows) return 2 * (queries + stage);
  const bool lends = stages == 1 && shape.bands * (CeilDiv(attention.width, kEight) / 2) <= kHeldSteps;
  return lends ? stage - values + std::max(values, queries) : queries + stages * stage;
}

// The same where warpgroups multiply (cuda_kernels/flash_attention/hopper_tile.cuh).
std::uint64_t WarpgroupBytes(const FlashAttention& attention, std::uint64_t queries, std::uint64_t keys,
                             std::uint64_t stages, bool copier) {
  constexpr std::uint64_t kAligned = 1008;
  constexpr std::uint64_t kBarriers = 16;
  constexpr std::uint64_t kPanel = 64;    // elements of a row
  constexpr std::uint64_t kGroup = 1024;  // of which a warpgroup's queries and results are multiples
  const auto width = static_cast<std::uint64_t>(attention.width);
  const std::uint64_t row = RoundUp(width, kPanel) * 2;
  const std::uint64_t of_group = kWarpgroupRows * std::max(row, Pitch(attention.width) * 2);
  const std::uint64_t groups = queries / kWarpgroupRows * RoundUp(of_group, kGroup);
  const std::uint64_t bias = attention.bias ? 2 * stages * keys : 0;
  return kAligned + 2 * stages * keys * row + groups + (copier ? kBarriers * stages : 0) + bias;
}

double ReadMicroseconds(const JsonReader& json) {
  if (!json.value().is_number() || !(json.value().get<double>() > 0)) json.Fail("is not a number above 0");
  return json.value().get<double>();
}

// The part of an entry point for Hopper that others do not have. threads: of its block.
FlashWarpgroups ReadWarpgroups(const JsonReader& json, const FlashAttention& attention, unsigned threads) {
  FlashWarpgroups warpgroups;
  warpgroups.count = static_cast<unsigned>(json["count"].Number(1, kMostWarpgroups));
  const unsigned all = warpgroups.count + (json["copier"].Flag() ? 1 : 0);
  if (threads != 4 * kWarpThreads * all) json["count"].Fail("is not that of the block's threads");
  warpgroups.blocks = static_cast<unsigned>(json["blocks"].Number(1, kMostBlocks));
  warpgroups.wave = ReadMicroseconds(json["wave"]);
  warpgroups.scores = ReadMicroseconds(json["scores"]);
  if (attention.width != attention.values || attention.width % kEight != 0) {
    json["count"].Fail("goes with values as wide as keys, a multiple of 8 elements");
  }
  if (attention.cap != 0 && attention.bias) json["count"].Fail("goes with no cap of biased scores");
  return warpgroups;
}

}  // namespace

FlashAttention ReadFlashAttention(const JsonReader& json, const std::vector<Dtype>& inputs,
                                  const std::vector<Dtype>& outputs) {
  FlashAttention attention;
  if (inputs.empty() || inputs.size() > kFlashAttentionInputs) {
    json["inputs"].Fail("are not 1 to " + std::to_string(kFlashAttentionInputs));
  }
  if (outputs.size() != 1) json["outputs"].Fail("are not one");
  attention.inputs = inputs.size();
  attention.dtype = inputs[0];
  attention.output = outputs[0];
  if (json.Has("codes")) attention.codes = ReadCodes(json["codes"], attention);
  if (!attention.codes && attention.output != attention.dtype) {
    json["outputs"].Fail("are not of the inputs' dtype, and there are no codes");
  }
  const auto same = [&](Dtype dtype) { return dtype == attention.dtype; };
  if (!std::all_of(inputs.begin(), inputs.end(), same)) json["inputs"].Fail("differ in dtype");
  if (Row(attention.dtype).compute != Dtype::kFloat32 || Size(attention.dtype) != 2) {
    json["inputs"].Fail("are " + std::string(Row(attention.dtype).name) + ", no floats of 16 bits");
  }
  const auto number = [&](const char* field, std::uint64_t most) {
    return static_cast<std::int64_t>(json[field].Number(1, most));
  };
  attention.heads = number("heads", kMostHeads);
  attention.groups = number("groups", kMostHeads);
  attention.width = number("width", kMostWidth);
  attention.values = number("values", kMostWidth);
  if (attention.heads % attention.groups != 0) json["heads"].Fail("is no multiple of groups");
  if (!json["scale"].value().is_number()) json["scale"].Fail("is not a number");
  attention.scale = json["scale"].value().get<float>();
  if (!std::isfinite(attention.scale) || attention.scale <= 0) json["scale"].Fail("is not a float32 above 0");
  if (json.Has("cap")) {
    if (!json["cap"].value().is_number()) json["cap"].Fail("is not a number");
    attention.cap = json["cap"].value().get<float>();
    if (!std::isfinite(attention.cap) || attention.cap <= 0) json["cap"].Fail("is not a float32 above 0");
  }
  const auto window = [&](const char* field) { return static_cast<std::int64_t>(json[field].Number(0, kMostWindow)); };
  if (json.Has("before")) attention.before = window("before");
  if (json.Has("after")) attention.after = window("after");
  attention.q = ReadHeads(json["q"], inputs.size(), attention.heads, attention.width);
  attention.k = ReadHeads(json["k"], inputs.size(), attention.groups, attention.width);
  attention.v = ReadHeads(json["v"], inputs.size(), attention.groups, attention.values);
  if (attention.q.row == 0) json["q"]["row"].Fail("is 0");
  if (json.Has("bias")) attention.bias = json["bias"].Number(0, inputs.size() - 1);
  if (json.Has("sinks")) attention.sinks = json["sinks"].Number(0, inputs.size() - 1);
  return attention;
}

Variant ReadFlashVariant(const JsonReader& json, const FlashAttention& attention) {
  Variant variant = ReadVariant(json);
  variant.waits = json["waits"].Flag();
  if (variant.threads % kWarpThreads != 0) json["threads"].Fail("is no multiple of a warp");
  FlashTileShape shape;
  shape.keys = static_cast<unsigned>(json["keys"].Number(kFlashRows, kMostKeys));
  if (shape.keys % kFlashRows != 0) json["keys"].Fail("is no multiple of " + std::to_string(kFlashRows));
  shape.short_rows = json["short"].Flag();
  shape.access = static_cast<unsigned>(json["access"].Number(2, kMostAccess));
  if ((shape.access & (shape.access - 1)) != 0) json["access"].Fail("is no power of 2");
  const auto bytes = [&](std::int64_t elements) { return static_cast<std::uint64_t>(elements) * 2 % shape.access; };
  for (const Heads& heads : {attention.q, attention.k, attention.v}) {
    if (bytes(heads.row) + bytes(heads.first) + bytes(heads.step) != 0) json["access"].Fail("does not divide a row");
  }
  if (bytes(attention.width) + bytes(attention.values) != 0) json["access"].Fail("does not divide a head");
  variant.shared = static_cast<unsigned>(json["shared"].Number(0, kMostShared));
  std::uint64_t shared = 0;
  if (json.Has("warpgroups") && !json["warpgroups"].value().is_null()) {
    const JsonReader warpgroups = json["warpgroups"];
    shape.warpgroups = ReadWarpgroups(warpgroups, attention, variant.threads);
    if (shape.access != kMostAccess) json["access"].Fail("is not 16");
    shape.queries = shape.warpgroups->count * kWarpgroupRows;
    const std::uint64_t stages = json["stages"].Number(1, kMostStagesOfWarpgroups);
    shared = WarpgroupBytes(attention, shape.queries, shape.keys, stages, warpgroups["copier"].Flag());
  } else {
    shape.bands = static_cast<unsigned>(json["bands"].Number(1, kMostBands));
    shape.queries = variant.threads / kWarpThreads * shape.bands * kFlashRows;
    shared = SharedBytes(attention, shape, json["stages"].Number(1, kMostStages));
  }
  if (variant.shared != shared) json["shared"].Fail("is not what the tile takes");
  variant.shape.Set(shape);
  return variant;
}

}  // namespace onnxopt
