#include "kernel_file/depthwise.h"

#include <algorithm>
#include <limits>
#include <string>

#include "kernel_file/fields.h"
#include "kernel_file/pointwise.h"
#include "kernel_file/generated/readers.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kMost = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMostSide = 255;  // of a kernel, a stride and a dilation
constexpr std::uint64_t kMostTile = 16;
constexpr std::uint64_t kMaxShared = std::uint64_t{1} << 20U;
constexpr unsigned kBandedVector = 8;
constexpr std::uint64_t kMostExpandedTile = 32;  // rows and columns of outputs
constexpr unsigned kExpandedMost = 8;            // chunks of channels at a time
constexpr std::uint64_t kMostExpanded = 96;      // channels in front of an expansion
constexpr std::int64_t kMostExpandedSide = 7;    // of a kernel behind one
constexpr std::int64_t kExpandedAccess = 8;      // elements

bool IsStored(Dtype dtype) { return dtype == Dtype::kFloat16 || dtype == Dtype::kBfloat16 || dtype == Dtype::kFloat32; }

DepthwiseForm ReadForm(const JsonReader& json) {
  const std::string text = json.Text();
  if (text == "element") return DepthwiseForm::kElement;
  if (text == "channel") return DepthwiseForm::kChannel;
  if (text == "scalar") return DepthwiseForm::kScalar;
  json.Fail("is \"" + text + "\", not element, channel or scalar");
}

void CheckWindow(const Window& window, const JsonReader& json) {
  for (int axis = 0; axis < 2; ++axis) {
    if (std::max({window.kernel[axis], window.strides[axis], window.dilations[axis]}) > kMostSide) {
      json.Fail("has a kernel, stride or dilation above " + std::to_string(kMostSide));
    }
  }
}

DepthwiseLayout ReadLayout(const JsonReader& json) {
  const std::string text = json.Text();
  if (text == "held") return DepthwiseLayout::kHeld;
  if (text == "walking") return DepthwiseLayout::kWalking;
  if (text == "banded") return DepthwiseLayout::kBanded;
  if (text == "expanded") return DepthwiseLayout::kExpanded;
  json.Fail("is \"" + text + "\", which is no layout");
}

DepthwiseExpansion ReadExpansion(const JsonReader& json, const Depthwise& depthwise) {
  DepthwiseExpansion expansion;
  const auto position = [&](const char* field) {
    const std::size_t at = json[field].Number(0, depthwise.inputs.size() - 1);
    if (depthwise.inputs[at] != depthwise.dtype()) json[field].Fail("has another dtype than x");
    return at;
  };
  expansion.weight = position("weight");
  if (json.Has("bias")) expansion.bias = position("bias");
  expansion.channels = static_cast<std::int64_t>(json["channels"].Number(1, kMostExpanded));
  if (Size(depthwise.dtype()) != 2) json.Fail("is not of 16-bit floats");
  if (expansion.channels % kExpandedAccess != 0 || depthwise.channels % kExpandedAccess != 0) {
    json["channels"].Fail("or those of the kernel are no multiple of " + std::to_string(kExpandedAccess));
  }
  const Window& window = depthwise.window;
  for (int axis = 0; axis < 2; ++axis) {
    if (window.kernel[axis] > kMostExpandedSide || window.strides[axis] > 2 || window.dilations[axis] > 1) {
      json.Fail("stands in front of a kernel above 7, a stride above 2, or a dilation");
    }
  }
  for (const DepthwiseRead& read : depthwise.after.reads) {
    if (read.form == DepthwiseForm::kElement) json.Fail("stands in front of a program that reads by element");
  }
  return expansion;
}

// A thread for each vector of a round. A vector is a power of 2 of at most 16 bytes.
void CheckExpanded(const JsonReader& json, const Variant& variant, const DepthwiseShape& shape) {
  const unsigned groups = shape.chunks * static_cast<unsigned>(kExpandedAccess) / variant.vector;
  if (variant.threads < groups) json["threads"].Fail("are fewer than a round's vectors of channels");
}

}  // namespace

DepthwisePart ReadDepthwisePart(const JsonReader& json, const std::vector<Dtype>& inputs, Dtype first, Dtype result) {
  DepthwisePart part;
  part.program = ReadProgram(json["program"]);
  std::vector<Dtype> read = {first};
  json["reads"].Each([&](const JsonReader& r) {
    part.reads.push_back({r["input"].Number(0, inputs.size() - 1), ReadForm(r["form"])});
    read.push_back(inputs[part.reads.back().input]);
  });
  if (part.program.index) json["program"].Fail("has index operations, which no convolution has");
  if (part.program.inputs != read || part.program.outputs != std::vector<Dtype>{result}) {
    json["program"].Fail("does not compute one result of its dtype from what passes through and the reads");
  }
  return part;
}

Depthwise ReadDepthwise(const JsonReader& json, const std::vector<Dtype>& inputs, const std::vector<Dtype>& outputs) {
  Depthwise depthwise;
  if (inputs.size() < 2 || inputs.size() > kDepthwiseInputs) {
    json["inputs"].Fail("are not 2 to " + std::to_string(kDepthwiseInputs));
  }
  if (outputs.size() != 1 || !IsStored(outputs[0])) json["outputs"].Fail("are not one float of 16 or 32 bits");
  if (!std::all_of(inputs.begin(), inputs.end(), IsStored)) json["inputs"].Fail("are not floats of 16 or 32 bits");
  const auto position = [&](const char* field) { return json[field].Number(0, inputs.size() - 1); };
  depthwise.inputs = inputs;
  depthwise.output = outputs[0];
  depthwise.channels = static_cast<std::int64_t>(json["channels"].Number(1, kMost));
  depthwise.window = ReadWindow(json["window"]);
  CheckWindow(depthwise.window, json["window"]);
  depthwise.x = position("x");
  depthwise.weight = position("weight");
  if (json.Has("bias")) depthwise.bias = position("bias");
  const Dtype dtype = depthwise.dtype();
  if (inputs[depthwise.weight] != dtype) json["weight"].Fail("has another dtype than x");
  if (depthwise.bias && inputs[*depthwise.bias] != dtype) json["bias"].Fail("has another dtype than x");
  depthwise.after = ReadDepthwisePart(json["after"], inputs, Dtype::kFloat32, outputs[0]);
  if (json.Has("before")) {
    depthwise.before = ReadDepthwisePart(json["before"], inputs, dtype, dtype);
    for (const DepthwiseRead& read : depthwise.before->reads) {
      if (read.form == DepthwiseForm::kElement) json["before"].Fail("reads another tensor by element");
    }
  }
  if (json.Has("expansion")) depthwise.expansion = ReadExpansion(json["expansion"], depthwise);
  return depthwise;
}

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
    if (variant.vector != kBandedVector || Size(depthwise.dtype()) != 2 || depthwise.output != depthwise.dtype()) {
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
