#include "kernel_file/convolution.h"

#include <limits>
#include <string>

#include "kernel_file/window.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kMostGroups = std::numeric_limits<std::int32_t>::max();

ConvolutionActivation ReadActivation(const JsonReader& json) {
  const std::string text = json.Text();
  if (text == "none") return ConvolutionActivation::kNone;
  if (text == "relu") return ConvolutionActivation::kRelu;
  if (text == "silu") return ConvolutionActivation::kSilu;
  json.Fail("is \"" + text + "\", not none, relu or silu");
}

void ReadOperands(const JsonReader& json, std::size_t inputs, Convolution* convolution) {
  convolution->inputs = inputs;
  if (inputs == 0 || inputs > kConvolutionInputs) json["inputs"].Fail("has " + std::to_string(inputs) + " dtypes");
  std::vector<bool> read(inputs, false);
  const auto position = [&](const char* field) {
    const auto at = static_cast<std::size_t>(json[field].Number(0, inputs - 1));
    read[at] = true;
    return at;
  };
  convolution->x = position("x");
  convolution->w = position("w");
  if (json.Has("bias")) convolution->bias = position("bias");
  if (json.Has("residual")) convolution->residual = position("residual");
  for (std::size_t k = 0; k < inputs; ++k) {
    if (!read[k]) json["inputs"].Fail("has an input " + std::to_string(k) + " that nothing reads");
  }
}

}  // namespace

void ReadOperation(const JsonReader& json, Convolution* convolution) {
  convolution->window = ReadWindow(json["window"]);
  convolution->group = static_cast<std::int64_t>(json["group"].Number(1, kMostGroups));
  convolution->activation = ReadActivation(json["activation"]);
  convolution->residual_last = json["residual_last"].Flag();
}

Convolution ReadConvolution(const JsonReader& json, const std::vector<Dtype>& inputs,
                            const std::vector<Dtype>& outputs) {
  Convolution convolution;
  ReadOperation(json, &convolution);
  ReadOperands(json, inputs.size(), &convolution);
  if (convolution.residual_last && !convolution.residual) json["residual_last"].Fail("is set without a residual");
  if (outputs.size() != 1) json["outputs"].Fail("has " + std::to_string(outputs.size()) + " dtypes, not 1");
  convolution.dtype = outputs[0];
  const bool floats = Row(convolution.dtype).compute == Dtype::kFloat32;
  if (!floats) json["outputs"].Fail("is " + std::string(Row(convolution.dtype).name) + ", no float of 16 or 32 bits");
  for (const Dtype dtype : inputs) {
    if (dtype != convolution.dtype) json["inputs"].Fail("differ from the output's dtype");
  }
  return convolution;
}

}  // namespace onnxopt
