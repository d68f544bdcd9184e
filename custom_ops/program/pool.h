// A max or average over windows of an NHWC tensor: the C++ side of onnxopt/program/pool.py.
#pragma once

#include <cstdint>

#include "program/dtype.h"
#include "program/window.h"

namespace onnxopt {

enum class PoolOperation : std::uint8_t { kMax, kAverage };

struct Pool {
  Dtype dtype = Dtype::kFloat16;  // of the input and the output
  PoolOperation operation = PoolOperation::kMax;
  Window window;
  bool ceil_mode = false;
  bool count_include_pad = false;
};

// Along `axis` (0: height, 1: width) of `extent` elements, at most kMostExtent, as ONNX Runtime's pools work it out.
// The output is below 0 where the window is too large.
Slide SlideAlong(const Pool& pool, int axis, std::int64_t extent);

}  // namespace onnxopt
