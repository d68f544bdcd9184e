#include "kernel_file/squeeze_excite.h"

#include <algorithm>
#include <string>

#include "kernel_file/depthwise.h"
#include "kernel_file/fields.h"
#include "kernel_file/pointwise.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kMostChannels = 2048;
constexpr std::uint64_t kMostHidden = 512;
constexpr unsigned kMostRows = 4;  // of a block, for which it has shared memory

bool IsStored(Dtype dtype) { return dtype == Dtype::kFloat16 || dtype == Dtype::kBfloat16 || dtype == Dtype::kFloat32; }

std::size_t ReadOperand(const JsonReader& json, const std::vector<Dtype>& inputs, Dtype dtype) {
  const std::size_t position = json.Number(0, inputs.size() - 1);
  if (inputs[position] != dtype) json.Fail("has another dtype than the factors");
  return position;
}

SqueezeExciteLayer ReadLayer(const JsonReader& json, const std::vector<Dtype>& inputs, Dtype dtype) {
  SqueezeExciteLayer layer;
  layer.weight = ReadOperand(json["weight"], inputs, dtype);
  if (json.Has("bias")) layer.bias = ReadOperand(json["bias"], inputs, dtype);
  layer.program = ReadProgram(json["program"]);
  if (layer.program.index) json["program"].Fail("has index operations, which no squeeze-excite has");
  if (layer.program.inputs != std::vector<Dtype>{Dtype::kFloat32} ||
      layer.program.outputs != std::vector<Dtype>{dtype}) {
    json["program"].Fail("does not compute one result of its dtype from one float32");
  }
  return layer;
}

Depthwise ReadMap(const JsonReader& json, const std::vector<Dtype>& inputs, Dtype dtype) {
  const std::vector<Dtype> read = ReadDtypes(json["inputs"]);
  const std::vector<Dtype> written = ReadDtypes(json["outputs"]);
  if (read.size() > inputs.size() || !std::equal(read.begin(), read.end(), inputs.begin())) {
    json["inputs"].Fail("are not the kernel's first inputs");
  }
  if (written != std::vector<Dtype>{dtype}) json["outputs"].Fail("are not the kernel's first output");
  return ReadDepthwise(json, read, written);
}

}  // namespace

SqueezeExcite ReadSqueezeExcite(const JsonReader& json, const std::vector<Dtype>& inputs,
                                const std::vector<Dtype>& outputs) {
  SqueezeExcite meaning;
  if (inputs.size() < 2 || inputs.size() > kSqueezeExciteInputs) {
    json["inputs"].Fail("are not 2 to " + std::to_string(kSqueezeExciteInputs));
  }
  if (json.Has("mean") == json.Has("depthwise")) json.Fail("has both or none of mean and depthwise");
  if (outputs.size() != (json.Has("mean") ? 1 : 2) || !IsStored(outputs.back()) || outputs.front() != outputs.back()) {
    json["outputs"].Fail("are not the factors, behind the map where there is one, of one float of 16 or 32 bits");
  }
  meaning.inputs = inputs;
  meaning.dtype = outputs.back();
  const auto number = [&](const char* field, std::uint64_t most) {
    return static_cast<std::int64_t>(json[field].Number(1, most));
  };
  meaning.channels = number("channels", kMostChannels);
  meaning.hidden = number("hidden", kMostHidden);
  meaning.results = number("results", kMostChannels);
  meaning.layer[0] = ReadLayer(json["first"], inputs, meaning.dtype);
  meaning.layer[1] = ReadLayer(json["second"], inputs, meaning.dtype);
  if (json.Has("mean")) {
    meaning.mean = ReadOperand(json["mean"], inputs, meaning.dtype);
    return meaning;
  }
  meaning.depthwise = ReadMap(json["depthwise"], inputs, meaning.dtype);
  if (meaning.depthwise->dtype() != meaning.dtype || meaning.depthwise->channels != meaning.channels) {
    json["depthwise"].Fail("has another dtype or other channels than the products");
  }
  return meaning;
}

Variant ReadSqueezeExciteVariant(const JsonReader& json, const SqueezeExcite& meaning) {
  if (json.Has("layout")) {
    if (!meaning.depthwise) json["layout"].Fail("is of a depthwise convolution, which the kernel has none of");
    return ReadDepthwiseVariant(json, *meaning.depthwise);
  }
  Variant variant = ReadVariant(json);
  variant.waits = json["waits"].Flag();
  if (variant.threads % kWarpThreads != 0) json["threads"].Fail("is no multiple of a warp");
  if (variant.unroll > kMostRows) json["unroll"].Fail("is above " + std::to_string(kMostRows));
  return variant;
}

void CheckSqueezeExciteVariants(const JsonReader& json, const SqueezeExcite& meaning,
                                const std::vector<Variant>& variants) {
  const std::size_t products = meaning.depthwise ? kSqueezeExciteMap : kSqueezeExciteFold;
  bool ordered = meaning.depthwise ? variants.size() > products : variants.size() == products;
  for (std::size_t k = 0; k < variants.size(); ++k) {
    ordered = ordered && variants[k].shape.Is<DepthwiseShape>() == (k >= products);
  }
  if (!ordered) json.Fail("are not the products, and behind them those of the map");
}

}  // namespace onnxopt
