#include "call/squeeze_excite_shapes.h"

#include "call/depthwise_shapes.h"

namespace onnxopt {

void InferShapes(const SqueezeExcite& meaning, OrtShapeInferContext* context) {
  const auto inputs = InputDims(context, meaning.inputs.size());
  if (meaning.mean) {
    const std::optional<Dims>& mean = inputs[*meaning.mean];
    if (!mean || mean->size() < 2) return;
    Dims factors = *mean;
    factors.back() = Dim{meaning.results, ""};
    SetOutputDims(context, 0, meaning.dtype, factors);
    return;
  }
  const std::optional<Dims> map = ResultDims(*meaning.depthwise, inputs[meaning.depthwise->x]);
  if (!map) return;
  SetOutputDims(context, 0, meaning.dtype, *map);
  SetOutputDims(context, 1, meaning.dtype, {(*map)[0], Dim{1, ""}, Dim{1, ""}, Dim{meaning.results, ""}});
}

}  // namespace onnxopt
