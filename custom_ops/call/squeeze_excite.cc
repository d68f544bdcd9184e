#include "call/squeeze_excite.h"

#include <string>

#include "call/tensors.h"
#include "program/shape.h"

namespace onnxopt {
namespace {

[[noreturn]] void Refuse(const SqueezeExcite& meaning, const char* what, const Shape& shape) {
  throw Error("squeeze-excite of " + std::to_string(meaning.channels) + ", " + std::to_string(meaning.hidden) +
              " and " + std::to_string(meaning.results) + " channels: " + what + " of shape " + ToString(shape) +
              " does not fit");
}

void CheckLayer(const SqueezeExcite& meaning, int k, const Shape* shapes) {
  const SqueezeExciteLayer& layer = k == 0 ? meaning.first : meaning.second;
  const std::int64_t operands = k == 0 ? meaning.channels : meaning.hidden;
  const std::int64_t results = k == 0 ? meaning.hidden : meaning.results;
  const Shape& weight = shapes[layer.weight];
  if (weight.rank != 2 || weight.dims[0] != results || weight.dims[1] != operands) Refuse(meaning, "a weight", weight);
  if (!layer.bias) return;
  const Shape& bias = shapes[*layer.bias];
  if (bias.count() != static_cast<std::uint64_t>(results)) Refuse(meaning, "a bias", bias);
}

// [N, 1, 1, results] for [N, 1, 1, channels].
Shape FactorsOf(const SqueezeExcite& meaning, const Shape& mean) {
  const std::uint64_t row = static_cast<std::uint64_t>(meaning.channels);
  bool fits = mean.rank >= 2 && mean.dims[mean.rank - 1] == meaning.channels;
  fits = fits && mean.count() == static_cast<std::uint64_t>(mean.dims[0]) * row;
  if (!fits || mean.dims[0] > kMostExtent) Refuse(meaning, "a mean", mean);
  Shape factors = mean;
  factors.dims[mean.rank - 1] = meaning.results;
  return factors;
}

}  // namespace

SqueezeExciteCall OpenCall(const SqueezeExcite& meaning, OrtKernelContext* context) {
  Shape shapes[SqueezeExcite::kMaxInputs];
  const void* inputs[SqueezeExcite::kMaxInputs] = {};
  for (std::size_t k = 0; k < meaning.inputs.size(); ++k) inputs[k] = InputTensor(context, k, &shapes[k]);
  SqueezeExciteCall call{};
  for (int k = 0; k < 2; ++k) {
    CheckLayer(meaning, k, shapes);
    const SqueezeExciteLayer& layer = k == 0 ? meaning.first : meaning.second;
    call.weight[k] = inputs[layer.weight];
    call.bias[k] = layer.bias ? inputs[*layer.bias] : nullptr;
  }
  Shape mean;
  if (meaning.depthwise) {
    call.map = OpenCall(*meaning.depthwise, context);
    mean = Shape{4, {call.map.batch, 1, 1, meaning.channels}};
  } else {
    call.mean = inputs[*meaning.mean];
    mean = shapes[*meaning.mean];
  }
  const Shape factors = FactorsOf(meaning, mean);
  call.rows = mean.dims[0];
  call.y = OutputTensor(context, meaning.depthwise ? 1 : 0, factors);
  if (call.rows == 0) call.y = nullptr;
  return call;
}

}  // namespace onnxopt
