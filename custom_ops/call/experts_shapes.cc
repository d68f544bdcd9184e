#include "call/experts_shapes.h"

#include "call/dims.h"

namespace onnxopt {

void InferShapes(const Experts& experts, OrtShapeInferContext* context) {
  const auto inputs = InputDims(context, experts.inputs);
  const std::optional<Dims>& x = inputs[kExpertsX];
  if (!x || x->size() != 2) return;
  SetOutputDims(context, 0, experts.dtype, {(*x)[0], Dim{experts.columns, ""}});
}

}  // namespace onnxopt
