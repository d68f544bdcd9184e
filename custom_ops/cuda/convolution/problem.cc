#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "cuda/convolution/graph.h"
#include "support/portability.h"

namespace onnxopt::cuda {
namespace {

// The activation, after a space; "" for none.
std::string Text(const Convolution& convolution) {
  std::array<char, 32> value{};  // enough for %.9g, which tells all floats apart
  std::snprintf(value.data(), value.size(), " %.9g", static_cast<double>(convolution.activation_value));
  switch (convolution.activation) {
    case ConvolutionActivation::kNone:
      return "";
    case ConvolutionActivation::kRelu:
      return " relu";
    case ConvolutionActivation::kSilu:
      return " silu";
    case ConvolutionActivation::kClip:
      return std::string(" clip") + value.data();
    case ConvolutionActivation::kLeakyRelu:
      return std::string(" leaky_relu") + value.data();
    case ConvolutionActivation::kHardswish:
      return " hardswish";
    case ConvolutionActivation::kPrelu:
      return " prelu";
  }
  return "";
}

// Of a graph of codes, all that its kernel is compiled for: dtypes, and which steps there are.
std::string CodesText(const Convolution& convolution) {
  std::string text = " to " + std::string(Row(convolution.outputs[0]).name);
  const auto name = [&](const char* what, std::optional<std::size_t> at) {
    if (at) text += std::string(" ") + what + " " + std::string(Row(convolution.inputs[*at]).name);
  };
  const auto has_zero = [](const CodeScale& of) { return of.zero != 0 ? " with zero" : ""; };
  name("scales", convolution.scale);
  name("bias", convolution.bias);
  name("residual", convolution.residual);
  const ConvolutionCodes& codes = *convolution.codes;
  if (codes.residual) text += has_zero(*codes.residual);
  if (codes.rounded) text += " rounded";
  if (codes.result) text += std::string(" quantized") + has_zero(*codes.result);
  return text;
}

std::string Times(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (const std::int64_t number : numbers) text += (text.empty() ? "" : "x") + std::to_string(number);
  return text;
}

}  // namespace

ConvolutionProblem ConvolutionProblem::Bare() const {
  ConvolutionProblem bare = *this;
  bare.convolution.bias.reset();
  bare.convolution.residual.reset();
  bare.convolution.residual_last = false;
  bare.convolution.activation = ConvolutionActivation::kNone;
  bare.convolution.activation_value = 0;
  bare.convolution.slope.reset();
  return bare;
}

ConvolutionProblem ConvolutionProblem::Ready() const {
  if (!Compiles()) return *this;
  if (convolution.transposed) return Bare();
  ConvolutionProblem ready = *this;
  if (convolution.residual_last) ready.convolution.residual.reset();
  ready.convolution.residual_last = false;
  ready.convolution.activation = ConvolutionActivation::kNone;
  ready.convolution.activation_value = 0;
  ready.convolution.slope.reset();
  return ready;
}

int ConvolutionProblem::PowerOfPixels() const {
  const double pixels = static_cast<double>(sizes.n) * static_cast<double>(sizes.output_d) *
                        static_cast<double>(sizes.output_h * sizes.output_w);
  return static_cast<int>(std::lround(std::log2(std::max(pixels, 1.0))));
}

std::optional<ConvolutionProblem> ConvolutionProblem::OfPixels(int power) const {
  const auto power_of_two = [](int of) { return std::int64_t{1} << static_cast<unsigned>(of); };
  const bool is_volume = convolution.window.depth.has_value();
  const int through = is_volume ? power / 3 : 0;
  const int plane = power - through;
  ConvolutionProblem like = *this;
  like.sizes.n = 1 + plane % 2;
  for (int axis = is_volume ? kDepthAxis : kHeightAxis; axis <= kWidthAxis; ++axis) {
    const std::int64_t side = power_of_two(axis == kDepthAxis ? through : plane / 2);
    const std::int64_t stride = SideOf(convolution.window, axis).stride;
    const std::int64_t extent = convolution.transposed ? std::max<std::int64_t>(1, side / stride) : side * stride;
    const Slide slide = OutputAlong(convolution, axis, extent);
    if (slide.output < 1) return std::nullopt;
    (axis == kDepthAxis ? like.sizes.d : axis == kHeightAxis ? like.sizes.h : like.sizes.w) = extent;
    (axis == kDepthAxis    ? like.sizes.output_d
     : axis == kHeightAxis ? like.sizes.output_h
                           : like.sizes.output_w) = slide.output;
    like.sizes.pads[axis + 1] = slide.pad_before;
    like.sizes.pads[axis + 4] = slide.pad_after;
  }
  return like;
}

bool ConvolutionProblem::Compiles() const {
  if (convolution.codes) return true;
  const ConvolutionActivation activation = convolution.activation;
  if (convolution.transposed)
    return convolution.bias || convolution.residual || activation != ConvolutionActivation::kNone;
  return activation != ConvolutionActivation::kNone && activation != ConvolutionActivation::kRelu;
}

ConvolutionProblem ConvolutionProblem::WithoutCompiling() const {
  if (!Compiles()) return *this;
  return Packed().Ready();
}

ConvolutionProblem ConvolutionProblem::Packed() const {
  ConvolutionProblem packed = *this;
  packed.sizes.x_pixel = sizes.c;
  packed.sizes.residual_pixel = packed.sizes.y_pixel = sizes.k;
  return packed;
}

std::string ConvolutionProblem::Describe() const {
  const Window& window = convolution.window;
  // A number for each axis, of images without the depth, which is the second of five dims and the first of three.
  const auto times = [&](std::vector<std::int64_t> of) {
    if (!window.depth) of.erase(of.begin() + (of.size() == 5 ? 1 : 0));
    return Times(of);
  };
  std::vector<std::int64_t> strides;
  std::vector<std::int64_t> dilations;
  for (int axis = window.depth ? kDepthAxis : kHeightAxis; axis <= kWidthAxis; ++axis) {
    strides.push_back(SideOf(window, axis).stride);
    dilations.push_back(SideOf(window, axis).dilation);
  }
  std::string text{Row(convolution.inputs[convolution.x]).name};
  if (convolution.codes) text += CodesText(convolution);
  text += " x " + times({sizes.n, sizes.d, sizes.h, sizes.w, sizes.c});
  const std::int64_t group = convolution.group;
  text += " w " + (convolution.transposed ? times({sizes.c, sizes.t, sizes.r, sizes.s, sizes.k / group}) + " transposed"
                                          : times({sizes.k, sizes.t, sizes.r, sizes.s, sizes.c / group}));
  text += " y " + times({sizes.output_d, sizes.output_h, sizes.output_w});
  const auto above = [](std::int64_t least) { return [least](std::int64_t number) { return number > least; }; };
  if (std::any_of(strides.begin(), strides.end(), above(1))) text += " strides " + Times(strides);
  if (std::any_of(dilations.begin(), dilations.end(), above(1))) text += " dilations " + Times(dilations);
  if (std::any_of(sizes.pads, sizes.pads + 6, above(0))) {
    std::vector<std::int64_t> pads(sizes.pads, sizes.pads + 6);
    if (!window.depth) pads = {pads[1], pads[2], pads[4], pads[5]};
    text += " pads " + Times(pads);
  }
  if (convolution.group != 1) text += " groups " + std::to_string(convolution.group);
  if (convolution.residual && !convolution.residual_last) text += " residual";
  if (convolution.bias) text += " bias";
  text += Text(convolution);
  if (convolution.residual && convolution.residual_last) text += " residual";
  if (sizes.x_pixel != sizes.c) text += " x in " + std::to_string(sizes.x_pixel);
  if (convolution.residual && sizes.residual_pixel != sizes.k) {
    text += " residual in " + std::to_string(sizes.residual_pixel);
  }
  if (sizes.y_pixel != sizes.k) text += " y in " + std::to_string(sizes.y_pixel);
  if (tf32) text += " tf32";
  if (alignment < 16) text += " aligned " + std::to_string(alignment);
  return text;
}

std::string ConvolutionProblem::Numbers() const {
  if (!convolution.codes) return "";
  const ConvolutionCodes& codes = *convolution.codes;
  std::string text;
  const auto add = [&](const std::optional<CodeScale>& of) {
    std::array<char, 64> number{};  // enough for two of %.9g
    if (of) std::snprintf(number.data(), number.size(), " %.9g %.9g", double{of->scale}, double{of->zero});
    text += of ? number.data() : " -";
  };
  add(CodeScale{codes.scale, codes.rounded_dtype == CodeDtype::kUint8 ? 1.0F : 0.0F});
  add(codes.rounded);
  add(codes.residual);
  add(codes.result);
  return text;
}

}  // namespace onnxopt::cuda
