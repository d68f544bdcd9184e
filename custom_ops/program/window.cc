#include "program/window.h"

#include <algorithm>

#include "support/math.h"

namespace onnxopt {

Slide SlideAlong(const Window& window, int axis, std::int64_t extent) {
  const std::int64_t stride = window.strides[axis];
  const std::int64_t covered = window.dilations[axis] * (window.kernel[axis] - 1) + 1;
  Slide slide{0, window.pads[axis], window.pads[axis + 2]};
  if (window.auto_pad == AutoPad::kSameUpper || window.auto_pad == AutoPad::kSameLower) {
    const auto wanted = static_cast<std::int64_t>(CeilDiv(extent, stride));
    const std::int64_t needed = std::max<std::int64_t>(0, (wanted - 1) * stride + covered - extent);
    slide.pad_before = window.auto_pad == AutoPad::kSameUpper ? needed / 2 : needed - needed / 2;
    slide.pad_after = needed - slide.pad_before;
  }
  const std::int64_t room = extent + slide.pad_before + slide.pad_after - covered;
  slide.output = room < 0 ? 0 : room / stride + 1;
  return slide;
}

}  // namespace onnxopt
