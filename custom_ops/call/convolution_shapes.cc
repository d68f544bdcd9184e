#include "call/convolution_shapes.h"

#include "call/dims.h"

namespace onnxopt {
namespace {

// A height or width behind the window.
Dim Behind(const Window& window, int axis, const Dim& before) {
  if (before.extent < 0) {
    const bool keeps =
        window.strides[axis] == 1 &&
        (window.auto_pad == AutoPad::kSameUpper || window.auto_pad == AutoPad::kSameLower ||
         window.pads[axis] + window.pads[axis + 2] == window.dilations[axis] * (window.kernel[axis] - 1));
    return keeps ? before : Dim{-1, FreshDimName()};
  }
  const Slide slide = SlideAlong(window, axis, before.extent);
  if (slide.output < 1) return {-1, FreshDimName()};  // the call will say so, as ONNX Runtime's own Conv does
  return {slide.output, ""};
}

}  // namespace

void InferShapes(const Convolution& convolution, OrtShapeInferContext* context) {
  const auto inputs = InputDims(context, convolution.inputs);
  const auto& x = inputs[convolution.x];
  const auto& w = inputs[convolution.w];
  if (!x || !w || x->size() != 4) return;
  SetOutputDims(context, 0, convolution.dtype,
                {(*x)[0], Behind(convolution.window, 0, (*x)[1]), Behind(convolution.window, 1, (*x)[2]), (*w)[0]});
}

}  // namespace onnxopt
