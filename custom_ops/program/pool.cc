#include "program/pool.h"

namespace onnxopt {

Slide SlideAlong(const Pool& pool, int axis, std::int64_t extent) {
  const Window& window = pool.window;
  const std::int64_t stride = window.strides[axis];
  Slide slide = SlideAlong(window, axis, extent);
  const std::int64_t covered = window.dilations[axis] * (window.kernel[axis] - 1) + 1;
  const std::int64_t room = extent + slide.pad_before + slide.pad_after - covered;
  slide.output = room / stride + 1;  // rounded towards 0 also where the window is larger than what it slides over
  if (pool.ceil_mode && room > 0 && room % stride != 0 && slide.output * stride < extent + slide.pad_before) {
    ++slide.output;  // this last window begins inside
  }
  return slide;
}

}  // namespace onnxopt
