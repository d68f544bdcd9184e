// Where a pool's window is along an axis (onnxopt/program/pool.py says what its fields mean).
#pragma once

#include <cstdint>

#include "program/generated/pool.h"
#include "program/window.h"

namespace onnxopt {

// Along `axis` of `extent` elements, at most kMaxExtent, as ONNX Runtime's pools work it out.
// The output is below 0 where the window is too large.
Slide SlideAlong(const Pool& pool, int axis, std::int64_t extent);

}  // namespace onnxopt
