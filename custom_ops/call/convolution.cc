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
  if (convolution.scale) text += ", scale " + ToString(inputs[*convolution.scale]);
  throw Error(text);
}

// The channels of y, or -1 where the weight does not fit an input of so many channels.
std::int64_t OutputChannels(const Convolution& convolution, const Shape& w, std::int64_t channels) {
  const Window& window = convolution.window;
  const std::int64_t group = convolution.group;
  if (w.rank == 0 || channels % group != 0 || w.dims[0] % group != 0) return -1;
  const std::int64_t of_group = w.dims[w.rank - 1];
  if (w.rank == 2) {
    const bool one = window.kernel[0] == 1 && window.kernel[1] == 1 && (!window.depth || window.depth->kernel == 1);
    return one && of_group == channels / group && !convolution.transposed ? w.dims[0] : -1;
  }
  const std::size_t first = window.depth ? 2 : 1;  // the dim of the window's rows
  if (w.rank != first + 3 || w.dims[first] != window.kernel[0] || w.dims[first + 1] != window.kernel[1]) return -1;
  if (window.depth && w.dims[1] != window.depth->kernel) return -1;
  if (!convolution.transposed) return of_group == channels / group ? w.dims[0] : -1;
  return w.dims[0] == channels && of_group <= kMaxExtent / group ? of_group * group : -1;
}

// [N, D, H, W, C] of x; D is 1 of images.
struct Volume {
  std::int64_t n, d, h, w, c;
};

// Throws Error where a dim is too large.
Volume VolumeOf(const Convolution& convolution, const Shape* inputs) {
  const Shape& x = inputs[convolution.x];
  const bool fits = x.rank == 5 || (x.rank == 4 && !convolution.window.depth);
  if (!fits) Misfit(convolution, inputs, "the convolution's input is not [N, H, W, C] or [N, D, H, W, C]");
  if (*std::max_element(x.dims, x.dims + x.rank) > kMaxExtent) Misfit(convolution, inputs, "a dim is above 2^31");
  const std::int64_t* const last = x.dims + x.rank - 1;
  return {x.dims[0], x.rank == 5 ? x.dims[1] : 1, last[-2], last[-1], last[0]};
}

// The window and the sizes with as few dims as they may have.
void Fold(Convolution* convolution, Volume* x) {
  Window& window = convolution->window;
  if (!window.depth) {
    x->n *= x->d;  // both below 2^31
    x->d = 1;
    return;
  }
  const bool pads = std::any_of(window.pads, window.pads + 4, [](std::int64_t pad) { return pad != 0; });
  const bool one = window.kernel[0] == 1 && window.kernel[1] == 1 && window.strides[0] == 1 && window.strides[1] == 1;
  if (!one || pads || (x->w > 0 && x->h > kMaxExtent / x->w)) return;
  const Depth depth = *window.depth;
  window = {
      {depth.kernel, 1}, {depth.stride, 1}, {depth.dilation, 1}, {depth.front, 0, depth.back, 0}, window.auto_pad, {}};
  convolution->output_padding[0] = convolution->depth_padding;
  convolution->depth_padding = 0;
  *x = {x->n, 1, x->d, x->h * x->w, x->c};
}

}  // namespace

Slide OutputAlong(const Convolution& convolution, int axis, std::int64_t extent) {
  if (!convolution.transposed) return SlideAlong(convolution.window, axis, extent);
  const WindowSide side = SideOf(convolution.window, axis);
  const std::int64_t more = axis == kDepthAxis ? convolution.depth_padding : convolution.output_padding[axis];
  const std::int64_t whole = (extent - 1) * side.stride + side.covered() + more;
  return {whole - side.before - side.after, side.before, side.after};
}

bool ConvolutionSizes::operator==(const ConvolutionSizes& other) const {
  const auto tie = [](const ConvolutionSizes& sizes) {
    return std::tie(sizes.n, sizes.d, sizes.h, sizes.w, sizes.c, sizes.k, sizes.t, sizes.r, sizes.s, sizes.output_d,
                    sizes.output_h, sizes.output_w, sizes.x_pixel, sizes.residual_pixel, sizes.y_pixel);
  };
  return tie(*this) == tie(other) && std::equal(pads, pads + 6, other.pads);
}

ConvolutionSizes MakeConvolution(Convolution* declared, const Shape* inputs) {
  const Convolution as_declared = *declared;  // errors name its window
  const Volume whole = VolumeOf(as_declared, inputs);
  const std::int64_t channels = OutputChannels(as_declared, inputs[as_declared.w], whole.c);
  if (channels < 0) Misfit(as_declared, inputs, "the weight does not fit the input");
  Volume x = whole;
  Fold(declared, &x);
  const Convolution& convolution = *declared;
  const Window& window = convolution.window;
  const Slide through = window.depth ? OutputAlong(convolution, kDepthAxis, x.d) : Slide{1, 0, 0};
  const Slide down = OutputAlong(convolution, kHeightAxis, x.h);
  const Slide across = OutputAlong(convolution, kWidthAxis, x.w);
  if (std::max({through.output, down.output, across.output}) > kMaxExtent)
    Misfit(convolution, inputs, "a dim of the result is above 2^31");
  if (std::min({through.output, down.output, across.output}) < 1) {
    Misfit(convolution, inputs,
           convolution.transposed ? "the padding takes away the whole result of the transposed convolution"
                                  : "Invalid input shape, the kernel is larger than the padded input");
  }
  const bool depth_is_height = as_declared.window.depth && !window.depth;
  Shape output = inputs[convolution.x];
  std::int64_t* const last = output.dims + output.rank - 1;
  last[0] = channels;
  if (depth_is_height) {
    last[-3] = down.output;
  } else {
    last[-2] = down.output;
    last[-1] = across.output;
    if (window.depth) last[-3] = through.output;
  }
  ConvolutionSizes sizes{
      x.n,
      x.d,
      x.h,
      x.w,
      x.c,
      channels,
      window.depth ? window.depth->kernel : 1,
      window.kernel[0],
      window.kernel[1],
      through.output,
      down.output,
      across.output,
      {through.pad_before, down.pad_before, across.pad_before, through.pad_after, down.pad_after, across.pad_after},
      x.c,
      channels,
      channels,
      output};
  const auto check = [&](std::optional<std::size_t> at, const char* problem) {
    if (!at) return;
    const Shape& numbers = inputs[*at];
    if (numbers.rank != 1 || numbers.dims[0] != sizes.k) Misfit(convolution, inputs, problem);
  };
  check(convolution.bias, "the bias has not one number a channel");
  check(convolution.slope, "there is not one slope a channel");
  check(convolution.scale, "there is not one scale a channel");
  if (convolution.residual && !(inputs[*convolution.residual] == sizes.output)) {
    Misfit(convolution, inputs, "the residual has not the output's shape " + ToString(sizes.output));
  }
  return sizes;
}

}  // namespace onnxopt
