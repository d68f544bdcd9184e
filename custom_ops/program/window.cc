#include "program/window.h"

#include <algorithm>

#include "support/math.h"

namespace onnxopt {

WindowSide SideOf(const Window& window, int axis) {
  if (axis == kDepthAxis) {
    const Depth& depth = *window.depth;
    return {depth.kernel, depth.stride, depth.dilation, depth.front, depth.back};
  }
  return {window.kernel[axis], window.strides[axis], window.dilations[axis], window.pads[axis], window.pads[axis + 2]};
}

Slide SlideAlong(const Window& window, int axis, std::int64_t extent) {
  const WindowSide side = SideOf(window, axis);
  Slide slide{0, side.before, side.after};
  if (window.auto_pad == AutoPad::kSameUpper || window.auto_pad == AutoPad::kSameLower) {
    const auto wanted = static_cast<std::int64_t>(CeilDiv(extent, side.stride));
    const std::int64_t needed = std::max<std::int64_t>(0, (wanted - 1) * side.stride + side.covered() - extent);
    slide.pad_before = window.auto_pad == AutoPad::kSameUpper ? needed / 2 : needed - needed / 2;
    slide.pad_after = needed - slide.pad_before;
  }
  const std::int64_t room = extent + slide.pad_before + slide.pad_after - side.covered();
  slide.output = room < 0 ? 0 : room / side.stride + 1;
  return slide;
}

}  // namespace onnxopt
