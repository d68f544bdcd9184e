#include "call/squeeze_excite.h"

#include "call/generated/calls.h"
#include "call/tensors.h"

namespace onnxopt {
namespace {

// [N, 1, 1, results] for [N, 1, 1, channels].
Shape FactorsOf(const SqueezeExcite& meaning, const Binding& binding, const Shape& mean) {
  const std::uint64_t row = static_cast<std::uint64_t>(meaning.channels);
  bool fits = mean.rank >= 2 && mean.dims[mean.rank - 1] == meaning.channels;
  fits = fits && mean.count() == static_cast<std::uint64_t>(mean.dims[0]) * row;
  if (!fits || mean.dims[0] > kMaxExtent) {
    binding.Fail("mean", mean, "is not [N, 1, ..., " + std::to_string(meaning.channels) + "]");
  }
  Shape factors = mean;
  factors.dims[mean.rank - 1] = meaning.results;
  return factors;
}

}  // namespace

SqueezeExciteCall OpenCall(const SqueezeExcite& meaning, OrtKernelContext* context) {
  Binding binding("squeeze_excite", meaning.inputs.size(), context);
  BindShapes(meaning, &binding);
  SqueezeExciteCall call{};
  for (const int k : {0, 1}) {
    const SqueezeExciteLayer& layer = k == 0 ? meaning.first : meaning.second;
    call.weight[k] = binding.data(layer.weight);
    call.bias[k] = layer.bias ? binding.data(*layer.bias) : nullptr;
  }
  Shape mean;
  if (meaning.depthwise) {
    call.map = OpenCall(*meaning.depthwise, context);
    mean = Shape{4, {call.map.batch, 1, 1, meaning.channels}};
  } else {
    call.mean = binding.data(*meaning.mean);
    mean = binding.shape(*meaning.mean);
  }
  const Shape factors = FactorsOf(meaning, binding, mean);
  call.rows = mean.dims[0];
  call.y = OutputTensor(context, meaning.depthwise ? 1 : 0, factors);
  if (call.rows == 0) call.y = nullptr;
  return call;
}

}  // namespace onnxopt
