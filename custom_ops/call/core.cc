#include "call/core.h"

#include <string>

#include "call/tensors.h"

namespace onnxopt {
namespace {

std::string Image(const CoreCall& call) { return std::to_string(call.height) + " x " + std::to_string(call.width); }

// least: of an output along an axis.
void SetSlides(const Window& window, const Slide& down, const Slide& across, std::int64_t least, CoreCall* call) {
  if (down.output < least || across.output < least) {
    throw Error("a window of " + std::to_string(window.kernel[0]) + " x " + std::to_string(window.kernel[1]) +
                " is larger than its padded image of " + Image(*call));
  }
  call->out_height = down.output;
  call->out_width = across.output;
  call->pad_top = down.pad_before;
  call->pad_left = across.pad_before;
}

}  // namespace

CoreCall OpenCore(const Binding& binding, std::size_t inputs, std::int64_t channels, bool has_window) {
  CoreCall call{};
  for (std::size_t k = 0; k < inputs; ++k) call.input[k] = binding.data(k);
  call.batch = binding[kN];
  call.height = binding[kH];
  call.width = binding[kW];
  call.channels = channels;
  if (has_window) return call;
  if (call.width > 0 && call.height > kMaxExtent / call.width) {
    throw Error("an image of " + Image(call) + " has 2^31 pixels or more");
  }
  call.out_height = call.height;
  call.out_width = call.width;
  return call;
}

void SlideOver(const Window& window, CoreCall* call) {
  SetSlides(window, SlideAlong(window, 0, call->height), SlideAlong(window, 1, call->width), 1, call);
}

void SlideOver(const Pool& pool, CoreCall* call) {
  if (call->batch != 0 && (call->height == 0 || call->width == 0 || call->channels == 0)) {
    throw Error("an image of " + Image(*call) + " x " + std::to_string(call->channels) + " is empty; only N may be 0");
  }
  SetSlides(pool.window, SlideAlong(pool, 0, call->height), SlideAlong(pool, 1, call->width), 0, call);
}

void Allocate(OrtKernelContext* context, CoreCall* call) {
  const Shape result = call->result();
  call->y = OutputTensor(context, 0, result);
  if (result.count() == 0) call->y = nullptr;
}

}  // namespace onnxopt
