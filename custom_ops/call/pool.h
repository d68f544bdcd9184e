// One call of a pool: its tensors.
#pragma once

#include "program/pool.h"
#include "support/ort.h"

namespace onnxopt {

// x: [n, h, w, c]. y: [n, output_h, output_w, c], null where it has no elements.
struct PoolCall {
  std::int64_t n;
  std::int64_t h;
  std::int64_t w;
  std::int64_t c;
  std::int64_t output_h;
  std::int64_t output_w;
  std::int64_t pad_top;
  std::int64_t pad_left;
  const void* x;
  void* y;

  std::int64_t output_elements() const { return n * output_h * output_w * c; }
};

// Reads the input's shape and allocates the output. Throws Error where ONNX Runtime's own pools do: with an empty
// image, and with a window that is too large.
PoolCall OpenCall(const Pool& pool, OrtKernelContext* context);

}  // namespace onnxopt
