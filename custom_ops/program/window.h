// How a convolution slides over the height and width of its input: the C++ side of onnxopt/program/window.py.
#pragma once

#include <cstdint>
#include <limits>

namespace onnxopt {

enum class AutoPad : std::uint8_t { kNotSet, kValid, kSameUpper, kSameLower };

// [0] is vertical, [1] horizontal. pads: top, left, bottom, right; zeros where auto_pad is set.
struct Window {
  std::int64_t kernel[2] = {1, 1};
  std::int64_t strides[2] = {1, 1};
  std::int64_t dilations[2] = {1, 1};
  std::int64_t pads[4] = {0, 0, 0, 0};
  AutoPad auto_pad = AutoPad::kNotSet;
};

// A window along one axis of an input. output is below 1 where the kernel is larger than the padded input.
struct Slide {
  std::int64_t output;
  std::int64_t pad_before;
  std::int64_t pad_after;
};

// Of what a window slides over: sums with what it covers and skips fit 64 bits.
constexpr std::int64_t kMostExtent = std::numeric_limits<std::int32_t>::max();

// Along `axis` (0: height, 1: width) of `extent` elements, at most kMostExtent, as ONNX Runtime's Conv works it out.
Slide SlideAlong(const Window& window, int axis, std::int64_t extent);

}  // namespace onnxopt
