#include "kernel_file/group_norm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "kernel_file/fields.h"
#include "kernel_file/pointwise.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kMost = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMostOfGroup = 1024;
constexpr std::uint64_t kMostHeld = 64;
constexpr std::uint64_t kMostCluster = 16;

bool IsStored(Dtype dtype) { return dtype == Dtype::kFloat16 || dtype == Dtype::kBfloat16 || dtype == Dtype::kFloat32; }

GroupForm ReadForm(const JsonReader& json) {
  const std::string text = json.Text();
  if (text == "element") return GroupForm::kElement;
  if (text == "channel") return GroupForm::kChannel;
  if (text == "sample") return GroupForm::kSample;
  if (text == "group") return GroupForm::kGroup;
  if (text == "scalar") return GroupForm::kScalar;
  json.Fail("is \"" + text + "\", not element, channel, sample, group or scalar");
}

GroupRead ReadRead(const JsonReader& json, std::size_t inputs, std::int64_t channels) {
  GroupRead read;
  read.input = json["input"].Number(0, inputs - 1);
  read.form = ReadForm(json["form"]);
  if (!json.Has("row")) return read;
  if (read.form != GroupForm::kSample) json["row"].Fail("is for reads by sample");
  read.row = static_cast<std::int64_t>(json["row"].Number(1, kMost));
  read.first = static_cast<std::int64_t>(json["first"].Number(0, kMost));
  if (read.first > read.row - channels) json["first"].Fail("leaves less than all channels");
  if (read.row % kGroupCut != 0 || read.first % kGroupCut != 0) json["row"].Fail("does not keep vectors aligned");
  return read;
}

// first: dtype of what passes through.
GroupPart ReadPart(const JsonReader& json, const GroupNorm& norm, Dtype first, Dtype result) {
  const std::vector<Dtype>& inputs = norm.inputs;
  GroupPart part;
  part.program = ReadProgram(json["program"]);
  std::vector<Dtype> read = {first};
  json["reads"].Each([&](const JsonReader& r) {
    part.reads.push_back(ReadRead(r, inputs.size(), norm.channels));
    read.push_back(inputs[part.reads.back().input]);
  });
  if (part.program.index) json["program"].Fail("has index operations, which no group norm has");
  if (part.program.inputs != read || part.program.outputs != std::vector<Dtype>{result}) {
    json["program"].Fail("does not compute one result of its dtype from what passes through and the reads");
  }
  return part;
}

float ReadEpsilon(const JsonReader& json) {
  if (!json.value().is_number()) json.Fail("is not a number");
  const double epsilon = json.value().get<double>();
  if (!(epsilon >= 0) || !std::isfinite(epsilon)) json.Fail("is below 0 or infinite");
  return static_cast<float>(epsilon);
}

GroupNormLayout ReadLayout(const JsonReader& json) {
  const std::string text = json.Text();
  if (text == "held") return GroupNormLayout::kHeld;
  if (text == "split") return GroupNormLayout::kSplit;
  if (text == "looped") return GroupNormLayout::kLooped;
  json.Fail("is \"" + text + "\", which is no layout");
}

}  // namespace

GroupNorm ReadGroupNorm(const JsonReader& json, const std::vector<Dtype>& inputs, const std::vector<Dtype>& outputs) {
  GroupNorm norm;
  if (inputs.empty() || inputs.size() > kGroupNormInputs) {
    json["inputs"].Fail("are not 1 to " + std::to_string(kGroupNormInputs));
  }
  if (outputs.size() != 1 || !IsStored(outputs[0])) json["outputs"].Fail("are not one float of 16 or 32 bits");
  if (!std::all_of(inputs.begin(), inputs.end(), IsStored)) json["inputs"].Fail("are not floats of 16 or 32 bits");
  norm.inputs = inputs;
  norm.output = outputs[0];
  norm.channels = static_cast<std::int64_t>(json["channels"].Number(1, kMost));
  norm.groups = static_cast<std::int64_t>(json["groups"].Number(1, kMost));
  if (norm.channels % norm.groups != 0) json["groups"].Fail("do not divide the channels");
  if (norm.group() > kMostOfGroup) json["groups"].Fail("have more than " + std::to_string(kMostOfGroup) + " channels");
  norm.epsilon = ReadEpsilon(json["epsilon"]);
  norm.x = json["x"].Number(0, inputs.size() - 1);
  norm.after = ReadPart(json["after"], norm, Dtype::kFloat32, outputs[0]);
  if (json.Has("before")) {
    norm.before = ReadPart(json["before"], norm, norm.dtype(), Dtype::kFloat32);
    for (const GroupRead& read : norm.before->reads) {
      if (read.form == GroupForm::kElement) json["before"].Fail("reads another tensor by element");
    }
  }
  return norm;
}

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

void CheckLaunches(const std::vector<Variant>& variants, const JsonReader& json) {
  unsigned next = 0;
  for (const Variant& variant : variants) {
    const auto& shape = variant.shape.As<GroupNormShape>();
    const bool split = shape.layout == GroupNormLayout::kSplit;
    if (shape.launch != next || (next > 0 && !split))
      json.Fail("have a split variant whose launches are not all there");
    next = split ? (next + 1) % kGroupNormLaunches : 0;
  }
  if (next != 0) json.Fail("have a split variant whose launches are not all there");
}

}  // namespace onnxopt
