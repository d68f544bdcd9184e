// Where a window is along an axis (onnxopt/program/window.py says what its fields mean).
#pragma once

#include <cstdint>
#include <limits>

#include "program/generated/window.h"

namespace onnxopt {

// The axes of a window. Only windows over volumes have the first.
constexpr int kDepthAxis = -1;
constexpr int kHeightAxis = 0;
constexpr int kWidthAxis = 1;

// A window along one axis.
struct WindowSide {
  std::int64_t kernel;
  std::int64_t stride;
  std::int64_t dilation;
  std::int64_t before;
  std::int64_t after;

  // Places from the first to the last that the window sees.
  std::int64_t covered() const { return dilation * (kernel - 1) + 1; }
};

WindowSide SideOf(const Window& window, int axis);

// A window along one axis of an input. output is below 1 where the kernel is larger than the padded input.
struct Slide {
  std::int64_t output;
  std::int64_t pad_before;
  std::int64_t pad_after;
};

// Of what a window slides over: sums with what it covers and skips fit 64 bits.
constexpr std::int64_t kMaxExtent = std::numeric_limits<std::int32_t>::max();

// Along `axis` of `extent` elements, at most kMaxExtent, as ONNX Runtime's Conv works it out.
Slide SlideAlong(const Window& window, int axis, std::int64_t extent);

}  // namespace onnxopt
