// One call of a convolution kernel.
#pragma once

#include "program/generated/convolution.h"
#include "program/shape.h"
#include "program/window.h"

namespace onnxopt {

// The sizes of one call. pads: top, left, bottom, right. x_pixel, residual_pixel, y_pixel: elements from one pixel to
// the next, which are more than a pixel has where the tensor is a part of a wider one.
struct ConvolutionSizes {
  std::int64_t n, h, w, c;
  std::int64_t k, r, s;
  std::int64_t output_h, output_w;
  std::int64_t pads[4];
  std::int64_t x_pixel, residual_pixel, y_pixel;

  Shape output() const;
  bool operator==(const ConvolutionSizes& other) const;
};

// The output along `axis` (0: height, 1: width) of an input of `extent` elements, at most kMaxExtent.
Slide OutputAlong(const Convolution& convolution, int axis, std::int64_t extent);

// Throws Error with all shapes where they do not fit together, and where the kernel is larger than the padded input.
ConvolutionSizes MakeConvolution(const Convolution& convolution, const Shape* inputs);

}  // namespace onnxopt
