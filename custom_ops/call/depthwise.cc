#include "call/depthwise.h"

#include <algorithm>
#include <string>

#include "call/tensors.h"
#include "program/shape.h"

namespace onnxopt {
namespace {

void CheckReads(const Depthwise& depthwise, const Transform& part, const Shape* shapes, const Shape& result) {
  for (const TransformRead& read : part.reads) {
    const Shape& shape = shapes[read.input];
    const std::uint64_t channels =
        read.form == TransformForm::kChannel ? static_cast<std::uint64_t>(depthwise.channels) : 1;
    const bool fits = read.form == TransformForm::kElement ? shape == result : shape.count() == channels;
    if (fits) continue;
    throw Error("depthwise convolution: input " + std::to_string(read.input) + " of shape " + ToString(shape) +
                " does not fit the result's shape " + ToString(result));
  }
}

void CheckExpansion(const Depthwise& depthwise, const Shape* shapes) {
  const Expansion& expansion = *depthwise.expansion;
  const Shape& weight = shapes[expansion.weight];
  const bool biased =
      !expansion.bias || shapes[*expansion.bias].count() == static_cast<std::uint64_t>(depthwise.channels);
  if (biased && weight.rank == 2 && weight.dims[0] == depthwise.channels && weight.dims[1] == expansion.channels)
    return;
  throw Error("depthwise convolution of " + std::to_string(depthwise.channels) + " channels expanded from " +
              std::to_string(expansion.channels) + ": weight " + ToString(weight) + " or its bias does not fit");
}

}  // namespace

DepthwiseCall OpenCall(const Depthwise& depthwise, OrtKernelContext* context) {
  Shape shapes[Depthwise::kMaxInputs];
  DepthwiseCall call{};
  for (std::size_t k = 0; k < depthwise.inputs.size(); ++k) call.input[k] = InputTensor(context, k, &shapes[k]);
  const Shape& x = shapes[depthwise.x];
  const Shape& weight = shapes[depthwise.weight];
  const Window& window = depthwise.window;
  const std::int64_t channels = depthwise.channels;
  const bool biased = !depthwise.bias || shapes[*depthwise.bias].count() == static_cast<std::uint64_t>(channels);
  if (x.rank != 4 || x.dims[3] != depthwise.x_channels() || !biased ||
      !(weight == ShapeOf(window.kernel[0], window.kernel[1], 1, channels))) {
    throw Error("depthwise convolution of " + std::to_string(channels) + " channels: x " + ToString(x) +
                " and weight " + ToString(weight) + " do not fit together");
  }
  if (*std::max_element(x.dims, x.dims + x.rank) > kMostExtent) {
    throw Error("depthwise convolution: x " + ToString(x) + " has a dim of 2^31 or more");
  }
  if (depthwise.expansion) CheckExpansion(depthwise, shapes);
  const Slide down = SlideAlong(window, 0, x.dims[1]);
  const Slide across = SlideAlong(window, 1, x.dims[2]);
  if (down.output < 1 || across.output < 1) {
    throw Error("depthwise convolution: the kernel is larger than its padded input " + ToString(x));
  }
  call.batch = x.dims[0];
  call.height = x.dims[1];
  call.width = x.dims[2];
  call.out_height = down.output;
  call.out_width = across.output;
  call.pad_top = down.pad_before;
  call.pad_left = across.pad_before;
  const Shape result = ShapeOf(call.batch, call.out_height, call.out_width, channels);
  CheckReads(depthwise, depthwise.epilogue, shapes, result);
  if (depthwise.prologue) CheckReads(depthwise, *depthwise.prologue, shapes, result);
  call.y = OutputTensor(context, 0, result);
  if (result.count() == 0) call.y = nullptr;
  return call;
}

}  // namespace onnxopt
