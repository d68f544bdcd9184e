#include "call/convolution_shapes.h"

#include "call/window_dims.h"

namespace onnxopt {

void InferShapes(const Convolution& convolution, OrtShapeInferContext* context) {
  const auto inputs = InputDims(context, convolution.inputs);
  const auto& x = inputs[convolution.x];
  const auto& w = inputs[convolution.w];
  if (!x || !w || x->size() != 4) return;
  SetOutputDims(context, 0, convolution.dtype,
                {(*x)[0], Behind(convolution.window, 0, (*x)[1]), Behind(convolution.window, 1, (*x)[2]), (*w)[0]});
}

}  // namespace onnxopt
