#include "call/image_convolution_shapes.h"

#include "call/window_dims.h"

namespace onnxopt {

void InferShapes(const ImageConvolution& convolution, OrtShapeInferContext* context) {
  const auto inputs = InputDims(context, convolution.inputs.size());
  const std::optional<Dims>& x = inputs[convolution.x];
  if (!x || x->size() != 4) return;
  const Window& window = convolution.window;
  const std::size_t height = convolution.planes ? 2 : 1;
  SetOutputDims(
      context, 0, convolution.dtype,
      {(*x)[0], Behind(window, 0, (*x)[height]), Behind(window, 1, (*x)[height + 1]), Dim{convolution.filters, ""}});
}

}  // namespace onnxopt
