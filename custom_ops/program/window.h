// Where a window is along an axis (onnxopt/program/window.py says what its fields mean).
#pragma once

#include <cstdint>
#include <limits>

#include "program/generated/window.h"

namespace onnxopt {

// A window along one axis of an input. output is below 1 where the kernel is larger than the padded input.
struct Slide {
  std::int64_t output;
  std::int64_t pad_before;
  std::int64_t pad_after;
};

// Of what a window slides over: sums with what it covers and skips fit 64 bits.
constexpr std::int64_t kMaxExtent = std::numeric_limits<std::int32_t>::max();

// Along `axis` (0: height, 1: width) of `extent` elements, at most kMaxExtent, as ONNX Runtime's Conv works it out.
Slide SlideAlong(const Window& window, int axis, std::int64_t extent);

}  // namespace onnxopt
