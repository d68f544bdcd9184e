#include "call/image_convolution.h"

#include <algorithm>
#include <string>

#include "call/tensors.h"
#include "program/shape.h"

namespace onnxopt {
namespace {

// channels: of what the part is applied to, "filter" or "channel".
void CheckReads(const Transform& part, std::int64_t channels, const char* name, const Shape* shapes) {
  for (const TransformRead& read : part.reads) {
    const Shape& shape = shapes[read.input];
    const std::uint64_t elements = read.form == TransformForm::kChannel ? static_cast<std::uint64_t>(channels) : 1;
    if (shape.count() == elements) continue;
    throw Error("image convolution: input " + std::to_string(read.input) + " of shape " + ToString(shape) +
                " has not one element a " + name + ", or not one");
  }
}

}  // namespace

ImageConvolutionCall OpenCall(const ImageConvolution& convolution, OrtKernelContext* context) {
  Shape shapes[ImageConvolution::kMaxInputs];
  ImageConvolutionCall call{};
  for (std::size_t k = 0; k < convolution.inputs.size(); ++k) call.input[k] = InputTensor(context, k, &shapes[k]);
  const Shape& x = shapes[convolution.x];
  const Shape& weight = shapes[convolution.weight];
  const Window& window = convolution.window;
  const std::int64_t filters = convolution.filters;
  const bool biased = !convolution.bias || shapes[*convolution.bias].count() == static_cast<std::uint64_t>(filters);
  if (x.rank != 4 || x.dims[convolution.planes ? 1 : 3] != convolution.channels || !biased ||
      !(weight == ShapeOf(filters, window.kernel[0], window.kernel[1], convolution.weight_channels))) {
    throw Error("image convolution of " + std::to_string(convolution.channels) + " channels: x " + ToString(x) +
                " and weight " + ToString(weight) + " do not fit together");
  }
  CheckReads(convolution.epilogue, filters, "filter", shapes);
  if (convolution.prologue) CheckReads(*convolution.prologue, convolution.channels, "channel", shapes);
  if (*std::max_element(x.dims, x.dims + x.rank) > kMostExtent) {
    throw Error("image convolution: x " + ToString(x) + " has a dim of 2^31 or more");
  }
  call.batch = x.dims[0];
  call.height = x.dims[convolution.planes ? 2 : 1];
  call.width = x.dims[convolution.planes ? 3 : 2];
  const Slide down = SlideAlong(window, 0, call.height);
  const Slide across = SlideAlong(window, 1, call.width);
  if (down.output < 1 || across.output < 1) {
    throw Error("image convolution: the kernel is larger than its padded input " + ToString(x));
  }
  call.out_height = down.output;
  call.out_width = across.output;
  call.pad_top = down.pad_before;
  call.pad_left = across.pad_before;
  const Shape result = ShapeOf(call.batch, call.out_height, call.out_width, filters);
  call.y = OutputTensor(context, 0, result);
  if (result.count() == 0) call.y = nullptr;
  return call;
}

}  // namespace onnxopt
