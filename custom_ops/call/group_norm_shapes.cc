#include "call/group_norm_shapes.h"

#include "call/dims.h"

namespace onnxopt {

void InferShapes(const GroupNorm& norm, OrtShapeInferContext* context) {
  const auto inputs = InputDims(context, norm.inputs.size());
  const std::optional<Dims>& x = inputs[norm.x];
  if (!x || x->size() != 4) return;
  SetOutputDims(context, 0, norm.output, {(*x)[0], (*x)[1], (*x)[2], Dim{norm.channels, ""}});
}

}  // namespace onnxopt
