#include "kernel_file/convolution.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>
#include <utility>

#include "kernel_file/window.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kMostGroups = std::numeric_limits<std::int32_t>::max();

void ReadActivation(const JsonReader& json, Convolution* convolution) {
  constexpr std::pair<const char*, ConvolutionActivation> kNames[] = {{"none", ConvolutionActivation::kNone},
                                                                      {"relu", ConvolutionActivation::kRelu},
                                                                      {"silu", ConvolutionActivation::kSilu},
                                                                      {"clip", ConvolutionActivation::kClip},
                                                                      {"leaky_relu", ConvolutionActivation::kLeakyRelu},
                                                                      {"hardswish", ConvolutionActivation::kHardSwish},
                                                                      {"prelu", ConvolutionActivation::kPrelu}};
  const std::string text = json["activation"].Text();
  const auto* const found =
      std::find_if(std::begin(kNames), std::end(kNames), [&](const auto& name) { return text == name.first; });
  if (found == std::end(kNames)) {
    json["activation"].Fail("is \"" + text + "\", not none, relu, silu, clip, leaky_relu, hardswish or prelu");
  }
  convolution->activation = found->second;
  const JsonReader value = json["activation_value"];
  if (!value.value().is_number()) value.Fail("is not a number");
  convolution->activation_value = value.value().get<float>();
  const bool clips = found->second == ConvolutionActivation::kClip;
  const bool has_value = clips || found->second == ConvolutionActivation::kLeakyRelu;
  if (!std::isfinite(convolution->activation_value)) value.Fail("is not finite");
  if (clips && convolution->activation_value <= 0) value.Fail("is no upper bound above 0");
  if (!has_value && convolution->activation_value != 0) value.Fail("is not 0 beside " + text);
}

void ReadTransposed(const JsonReader& json, Convolution* convolution) {
  convolution->transposed = json["transposed"].Flag();
  std::size_t count = 0;
  json["output_padding"].Each([&](const JsonReader& number) {
    if (count == 2) number.Fail("is a third number");
    const std::int64_t stride = convolution->window.strides[count];
    const std::int64_t most = convolution->transposed ? stride - 1 : 0;
    convolution->output_padding[count++] =
        static_cast<std::int64_t>(number.Number(0, static_cast<std::uint64_t>(most)));
  });
  if (count != 2) json["output_padding"].Fail("has " + std::to_string(count) + " numbers, not 2");
  if (convolution->transposed && convolution->window.auto_pad != AutoPad::kNotSet) {
    json["transposed"].Fail("is set beside auto_pad");
  }
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
  if (json.Has("slope")) convolution->slope = position("slope");
  if (convolution->slope.has_value() != (convolution->activation == ConvolutionActivation::kPrelu)) {
    json["activation"].Fail("does not go with the slope");
  }
  for (std::size_t k = 0; k < inputs; ++k) {
    if (!read[k]) json["inputs"].Fail("has an input " + std::to_string(k) + " that nothing reads");
  }
}

}  // namespace

void ReadOperation(const JsonReader& json, Convolution* convolution) {
  convolution->window = ReadWindow(json["window"]);
  convolution->group = static_cast<std::int64_t>(json["group"].Number(1, kMostGroups));
  ReadActivation(json, convolution);
  ReadTransposed(json, convolution);
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
  const bool floats = IsFloat(convolution.dtype);
  if (!floats) json["outputs"].Fail("is " + std::string(Row(convolution.dtype).name) + ", no float of 16 or 32 bits");
  for (const Dtype dtype : inputs) {
    if (dtype != convolution.dtype) json["inputs"].Fail("differ from the output's dtype");
  }
  return convolution;
}

}  // namespace onnxopt
