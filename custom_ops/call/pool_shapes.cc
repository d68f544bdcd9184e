#include "call/pool_shapes.h"

#include "call/dims.h"

namespace onnxopt {
namespace {

// A height or width behind the window. Where the window does not fit, the call will say so.
Dim Behind(const Pool& pool, int axis, const Dim& before) {
  const bool known = before.extent >= 0 && before.extent <= kMostExtent;
  const Slide slide = known ? SlideAlong(pool, axis, before.extent) : Slide{-1, 0, 0};
  return slide.output < 0 ? Dim{-1, FreshDimName()} : Dim{slide.output, ""};
}

}  // namespace

void InferShapes(const Pool& pool, OrtShapeInferContext* context) {
  const auto inputs = InputDims(context, 1);
  if (!inputs[0] || inputs[0]->size() != 4) return;
  const Dims& x = *inputs[0];
  SetOutputDims(context, 0, pool.dtype, {x[0], Behind(pool, 0, x[1]), Behind(pool, 1, x[2]), x[3]});
}

}  // namespace onnxopt
