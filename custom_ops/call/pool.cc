#include "call/pool.h"

#include "call/tensors.h"
#include "program/shape.h"

namespace onnxopt {

PoolCall OpenCall(const Pool& pool, OrtKernelContext* context) {
  Shape x{};
  const void* const data = InputTensor(context, 0, &x);
  if (x.rank != 4) throw Error("a pool's input " + ToString(x) + " is not [N, H, W, C]");
  const bool empty = x.dims[1] == 0 || x.dims[2] == 0 || x.dims[3] == 0;
  if (empty && x.dims[0] != 0) throw Error("a pool's input " + ToString(x) + " is empty; only N may be 0");
  for (std::size_t d = 0; d < x.rank; ++d) {
    if (x.dims[d] > kMostExtent) {
      throw Error("a pool's input " + ToString(x) + " has a dim of 2^31 or more");
    }
  }
  const Slide down = SlideAlong(pool, 0, x.dims[1]);
  const Slide across = SlideAlong(pool, 1, x.dims[2]);
  if (down.output < 0 || across.output < 0) {
    throw Error("a pool's window of " + std::to_string(pool.window.kernel[0]) + " x " +
                std::to_string(pool.window.kernel[1]) + " is larger than its padded input " + ToString(x));
  }
  PoolCall call{x.dims[0],     x.dims[1],       x.dims[2],         x.dims[3], down.output,
                across.output, down.pad_before, across.pad_before, data,      nullptr};
  Shape y = x;
  y.dims[1] = call.output_h;
  y.dims[2] = call.output_w;
  call.y = OutputTensor(context, 0, y);
  if (call.y == nullptr && call.output_elements() != 0) {
    throw Error("a pool's output is left out, which its function declares");
  }
  if (call.output_elements() == 0) call.y = nullptr;
  return call;
}

}  // namespace onnxopt
