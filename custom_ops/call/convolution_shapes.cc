#include "call/convolution_shapes.h"

#include "call/convolution.h"
#include "call/window_dims.h"

namespace onnxopt {

namespace {

Dim Along(const Convolution& convolution, int axis, const Dim& before) {
  if (!convolution.transposed) return Behind(convolution.window, axis, before);
  if (before.extent < 0 || before.extent > kMostExtent) return {-1, FreshDimName()};
  const Slide spread = OutputAlong(convolution, axis, before.extent);
  if (spread.output < 1) return {-1, FreshDimName()};  // the call will say so
  return {spread.output, ""};
}

}  // namespace

void InferShapes(const Convolution& convolution, OrtShapeInferContext* context) {
  const auto inputs = InputDims(context, convolution.inputs);
  const auto& x = inputs[convolution.x];
  const auto& w = inputs[convolution.w];
  if (!x || !w || x->size() != 4) return;
  Dim channels = (*w)[0];
  if (convolution.transposed)
    channels = w->size() == 4 ? Times((*w)[3], {convolution.group, ""}) : Dim{-1, FreshDimName()};
  SetOutputDims(context, 0, convolution.dtype,
                {(*x)[0], Along(convolution, 0, (*x)[1]), Along(convolution, 1, (*x)[2]), channels});
}

}  // namespace onnxopt
