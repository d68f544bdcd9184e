#include "call/depthwise_shapes.h"

#include "call/window_dims.h"

namespace onnxopt {

void InferShapes(const Depthwise& depthwise, OrtShapeInferContext* context) {
  const auto inputs = InputDims(context, depthwise.inputs.size());
  const std::optional<Dims> result = ResultDims(depthwise, inputs[depthwise.x]);
  if (result) SetOutputDims(context, 0, depthwise.output, *result);
}

std::optional<Dims> ResultDims(const Depthwise& depthwise, const std::optional<Dims>& x) {
  if (!x || x->size() != 4) return std::nullopt;
  const Window& window = depthwise.window;
  return Dims{(*x)[0], Behind(window, 0, (*x)[1]), Behind(window, 1, (*x)[2]), Dim{depthwise.channels, ""}};
}

}  // namespace onnxopt
