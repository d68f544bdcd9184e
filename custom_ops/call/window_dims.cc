#include "call/window_dims.h"

namespace onnxopt {

Dim Behind(const Window& window, int axis, const Dim& before) {
  if (before.extent < 0) {
    const bool same = window.auto_pad == AutoPad::kSameUpper || window.auto_pad == AutoPad::kSameLower;
    const std::int64_t covered = window.dilations[axis] * (window.kernel[axis] - 1);
    const bool keeps = window.strides[axis] == 1 && (same || window.pads[axis] + window.pads[axis + 2] == covered);
    return keeps ? before : Dim{-1, FreshDimName()};
  }
  if (before.extent > kMostExtent) return {-1, FreshDimName()};
  const Slide slide = SlideAlong(window, axis, before.extent);
  if (slide.output < 1) return {-1, FreshDimName()};  // the call will say so, as ONNX Runtime's own Conv does
  return {slide.output, ""};
}

}  // namespace onnxopt
