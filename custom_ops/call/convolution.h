// One call of a convolution kernel.
#pragma once

#include "program/generated/convolution.h"
#include "program/shape.h"
#include "program/window.h"

namespace onnxopt {

// The sizes of one call. d, t, output_d: of images 1. pads: front, top, left, back, bottom, right. x_pixel,
// residual_pixel, y_pixel: elements from one pixel to the next, which are more than a pixel has where the tensor is a
// part of a wider one. output: the shape of y.
struct ConvolutionSizes {
  std::int64_t n, d, h, w, c;
  std::int64_t k, t, r, s;
  std::int64_t output_d, output_h, output_w;
  std::int64_t pads[6];
  std::int64_t x_pixel, residual_pixel, y_pixel;
  Shape output;

  std::int64_t input_pixels() const { return n * d * h * w; }
  std::int64_t output_pixels() const { return n * output_d * output_h * output_w; }
  bool operator==(const ConvolutionSizes& other) const;
};

// The output along `axis` of an input of `extent` elements, at most kMaxExtent.
Slide OutputAlong(const Convolution& convolution, int axis, std::int64_t extent);

// Throws Error with all shapes where they do not fit together, and where the kernel is larger than the padded input.
// Of volumes whose depth the window does not go over, the planes count as images. Those over whose depth alone it goes
// have it as their height: `convolution` is changed to say so.
ConvolutionSizes MakeConvolution(Convolution* convolution, const Shape* inputs);

}  // namespace onnxopt
