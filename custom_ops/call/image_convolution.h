// One call of a convolution of images: its tensors.
#pragma once

#include "program/generated/image_convolution.h"
#include "program/window.h"
#include "support/ort.h"

namespace onnxopt {

// input: as the meaning numbers them. Where the result has no elements, y is null.
struct ImageConvolutionCall {
  const void* input[ImageConvolution::kMaxInputs];
  void* y;
  std::int64_t batch;
  std::int64_t height;
  std::int64_t width;
  std::int64_t out_height;
  std::int64_t out_width;
  std::int64_t pad_top;
  std::int64_t pad_left;
};

// Reads the inputs' shapes and allocates the output. Throws Error with the shapes where they do not fit together.
ImageConvolutionCall OpenCall(const ImageConvolution& convolution, OrtKernelContext* context);

}  // namespace onnxopt
