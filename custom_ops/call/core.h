// One call of an operator on images: its tensors and sizes. generated/calls.cc opens it.
#pragma once

#include "call/bind.h"
#include "program/pool.h"
#include "program/window.h"

namespace onnxopt {

// input: as the meaning numbers them. y: null where the result has no elements. channels: of the result, whose height
// and width are those of x where there is no window. Of volumes [N, D, H, W, C] whose depth no window goes over, the
// planes count as images, or where there is no window as rows of one image; others have a depth here.
struct CoreCall {
  static constexpr std::size_t kMaxInputs = 16;

  const void* input[kMaxInputs];
  void* y;
  std::int64_t batch;
  std::int64_t depth;
  std::int64_t height;
  std::int64_t width;
  std::int64_t channels;
  std::int64_t out_depth;
  std::int64_t out_height;
  std::int64_t out_width;
  std::int64_t pad_front;
  std::int64_t pad_top;
  std::int64_t pad_left;
  Shape result;

  std::int64_t elements() const { return static_cast<std::int64_t>(result.count()); }
};

// The inputs, and the sizes of x, which is bound. window: null where there is none. Throws Error where an image has
// 2^31 pixels and there is no window.
CoreCall OpenCore(const Binding& binding, std::size_t inputs, std::int64_t channels, const Window* window);

// Sets what the window makes of the sizes. Throws Error where it is larger than the padded image.
void SlideOver(const Window& window, CoreCall* call);

template <typename Meaning>
void SlideOver(const Meaning& meaning, CoreCall* call) {
  SlideOver(meaning.window, call);
}

// As ONNX Runtime's own pools, also throws Error with an empty image.
void SlideOver(const Pool& pool, CoreCall* call);

// Allocates the output.
void Allocate(OrtKernelContext* context, CoreCall* call);

}  // namespace onnxopt
