#include "call/convolution.h"

#include <algorithm>
#include <string>
#include <tuple>

#include "support/error.h"

namespace onnxopt {
namespace {

[[noreturn]] void Misfit(const Convolution& convolution, const Shape* inputs, const std::string& problem) {
  std::string text = problem + ": x " + ToString(inputs[convolution.x]) + ", w " + ToString(inputs[convolution.w]);
  if (convolution.group != 1) text += ", " + std::to_string(convolution.group) + " groups";
  if (convolution.bias) text += ", bias " + ToString(inputs[*convolution.bias]);
  if (convolution.residual) text += ", residual " + ToString(inputs[*convolution.residual]);
  if (convolution.slope) text += ", slope " + ToString(inputs[*convolution.slope]);
  throw Error(text);
}

// The channels of y, or -1 where the weight does not fit an input of so many channels.
std::int64_t OutputChannels(const Convolution& convolution, const Shape& w, std::int64_t channels) {
  const std::int64_t* kernel = convolution.window.kernel;
  const std::int64_t group = convolution.group;
  if (w.rank == 0 || channels % group != 0 || w.dims[0] % group != 0) return -1;
  const std::int64_t of_group = w.dims[w.rank - 1];
  if (w.rank == 2) {
    const bool fits = kernel[0] == 1 && kernel[1] == 1 && of_group == channels / group && !convolution.transposed;
    return fits ? w.dims[0] : -1;
  }
  if (w.rank != 4 || w.dims[1] != kernel[0] || w.dims[2] != kernel[1]) return -1;
  if (!convolution.transposed) return of_group == channels / group ? w.dims[0] : -1;
  return w.dims[0] == channels && of_group <= kMaxExtent / group ? of_group * group : -1;
}

}  // namespace

Slide OutputAlong(const Convolution& convolution, int axis, std::int64_t extent) {
  if (!convolution.transposed) return SlideAlong(convolution.window, axis, extent);
  const Window& window = convolution.window;
  const std::int64_t covered = window.dilations[axis] * (window.kernel[axis] - 1) + 1;
  const std::int64_t before = window.pads[axis];
  const std::int64_t after = window.pads[axis + 2];
  const std::int64_t whole = (extent - 1) * window.strides[axis] + covered + convolution.output_padding[axis];
  return {whole - before - after, before, after};
}

Shape ConvolutionSizes::output() const { return ShapeOf(n, output_h, output_w, k); }

bool ConvolutionSizes::operator==(const ConvolutionSizes& other) const {
  const auto tie = [](const ConvolutionSizes& sizes) {
    return std::tie(sizes.n, sizes.h, sizes.w, sizes.c, sizes.k, sizes.r, sizes.s, sizes.output_h, sizes.output_w,
                    sizes.x_pixel, sizes.residual_pixel, sizes.y_pixel);
  };
  return tie(*this) == tie(other) && std::equal(pads, pads + 4, other.pads);
}

ConvolutionSizes MakeConvolution(const Convolution& convolution, const Shape* inputs) {
  const Shape& x = inputs[convolution.x];
  const Shape& w = inputs[convolution.w];
  if (x.rank != 4) Misfit(convolution, inputs, "the convolution's input is not [N, H, W, C]");
  const std::int64_t channels = OutputChannels(convolution, w, x.dims[3]);
  if (channels < 0) Misfit(convolution, inputs, "the weight does not fit the input");
  for (std::size_t d = 0; d < 4; ++d) {
    if (x.dims[d] > kMaxExtent) Misfit(convolution, inputs, "a dim is above 2^31");
  }
  const Slide down = OutputAlong(convolution, 0, x.dims[1]);
  const Slide across = OutputAlong(convolution, 1, x.dims[2]);
  if (std::max(down.output, across.output) > kMaxExtent)
    Misfit(convolution, inputs, "a dim of the result is above 2^31");
  if (down.output < 1 || across.output < 1) {
    Misfit(convolution, inputs,
           convolution.transposed ? "the padding takes away the whole result of the transposed convolution"
                                  : "Invalid input shape, the kernel is larger than the padded input");
  }
  ConvolutionSizes sizes{x.dims[0],
                         x.dims[1],
                         x.dims[2],
                         x.dims[3],
                         channels,
                         convolution.window.kernel[0],
                         convolution.window.kernel[1],
                         down.output,
                         across.output,
                         {down.pad_before, across.pad_before, down.pad_after, across.pad_after},
                         x.dims[3],
                         channels,
                         channels};
  if (convolution.bias) {
    const Shape& bias = inputs[*convolution.bias];
    if (bias.rank != 1 || bias.dims[0] != sizes.k) Misfit(convolution, inputs, "the bias has not one number a channel");
  }
  if (convolution.slope) {
    const Shape& slope = inputs[*convolution.slope];
    if (slope.rank != 1 || slope.dims[0] != sizes.k) Misfit(convolution, inputs, "there is not one slope a channel");
  }
  if (convolution.residual && !(inputs[*convolution.residual] == sizes.output())) {
    Misfit(convolution, inputs, "the residual has not the output's shape " + ToString(sizes.output()));
  }
  return sizes;
}

}  // namespace onnxopt
