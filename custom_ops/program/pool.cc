#include "program/pool.h"

namespace onnxopt {

Slide SlideAlong(const Pool& pool, int axis, std::int64_t extent) {
  const WindowSide side = SideOf(pool.window, axis);
  Slide slide = SlideAlong(pool.window, axis, extent);
  const std::int64_t room = extent + slide.pad_before + slide.pad_after - side.covered();
  slide.output = room / side.stride + 1;  // rounded towards 0 also where the window is larger than what it slides over
  if (pool.ceil_mode && room > 0 && room % side.stride != 0 && slide.output * side.stride < extent + slide.pad_before) {
    ++slide.output;  // this last window begins inside
  }
  return slide;
}

}  // namespace onnxopt
