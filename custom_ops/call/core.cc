#include "call/core.h"

#include <algorithm>
#include <string>

#include "call/tensors.h"

namespace onnxopt {
namespace {

// has_depth: whether a window goes over it.
std::string Image(const CoreCall& call, bool has_depth) {
  const std::string plane = std::to_string(call.height) + " x " + std::to_string(call.width);
  return has_depth ? std::to_string(call.depth) + " x " + plane : plane;
}

struct Slides {
  Slide through;
  Slide down;
  Slide across;
};

constexpr Slide kNone{1, 0, 0};

// slides: through is kNone where no window goes over a depth. least: of an output along an axis.
void SetSlides(const Window& window, const Slides& slides, std::int64_t least, CoreCall* call) {
  const auto& [through, down, across] = slides;
  if (std::min({through.output, down.output, across.output}) < least) {
    const std::string depth = window.depth ? std::to_string(window.depth->kernel) + " x " : "";
    throw Error("a window of " + depth + std::to_string(window.kernel[0]) + " x " + std::to_string(window.kernel[1]) +
                " is larger than its padded image of " + Image(*call, window.depth.has_value()));
  }
  call->out_depth = through.output;
  call->out_height = down.output;
  call->out_width = across.output;
  call->pad_front = through.pad_before;
  call->pad_top = down.pad_before;
  call->pad_left = across.pad_before;
  std::int64_t* const last = call->result.dims + call->result.rank - 1;
  if (window.depth) last[-3] = through.output;
  last[-2] = down.output;
  last[-1] = across.output;
}

}  // namespace

CoreCall OpenCore(const Binding& binding, std::size_t inputs, std::int64_t channels, const Window* window) {
  CoreCall call{};
  for (std::size_t k = 0; k < inputs; ++k) call.input[k] = binding.data(k);
  const bool is_volume = binding[kD] >= 0;
  call.batch = binding[kN];
  call.depth = is_volume ? binding[kD] : 1;
  call.height = binding[kH];
  call.width = binding[kW];
  call.channels = channels;
  call.result = is_volume ? ShapeOf({call.batch, call.depth, call.height, call.width, channels})
                          : ShapeOf({call.batch, call.height, call.width, channels});
  if (window != nullptr && window->depth) {
    if (!is_volume) throw Error("a window over a depth has an image of " + Image(call, false));
    return call;
  }
  std::int64_t* const rows = window == nullptr ? &call.height : &call.batch;
  if (__builtin_mul_overflow(*rows, call.depth, rows)) throw Error("a volume has more than 2^63 planes");
  call.depth = call.out_depth = 1;
  if (window != nullptr) return call;
  if (call.width > 0 && call.height > kMaxExtent / call.width) {
    throw Error("an image of " + Image(call, false) + " has 2^31 pixels or more");
  }
  call.out_height = call.height;
  call.out_width = call.width;
  return call;
}

void SlideOver(const Window& window, CoreCall* call) {
  SetSlides(window, {kNone, SlideAlong(window, kHeightAxis, call->height), SlideAlong(window, kWidthAxis, call->width)},
            1, call);
}

void SlideOver(const Pool& pool, CoreCall* call) {
  const bool is_empty = std::min({call->depth, call->height, call->width, call->channels}) == 0;
  if (call->batch != 0 && is_empty) {
    throw Error("an image of " + Image(*call, pool.window.depth.has_value()) + " x " + std::to_string(call->channels) +
                " is empty; only N may be 0");
  }
  SetSlides(pool.window,
            {pool.window.depth ? SlideAlong(pool, kDepthAxis, call->depth) : kNone,
             SlideAlong(pool, kHeightAxis, call->height), SlideAlong(pool, kWidthAxis, call->width)},
            0, call);
}

void Allocate(OrtKernelContext* context, CoreCall* call) {
  call->y = OutputTensor(context, 0, call->result);
  if (call->result.count() == 0) call->y = nullptr;
}

}  // namespace onnxopt
