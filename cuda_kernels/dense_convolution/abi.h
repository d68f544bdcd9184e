// What the host hands to a dense convolution: x [batch, height, width, channels], w [filters, R, S, channels] and y
// [batch, out_height, out_width, filters]. Shared by the kernels (NVRTC) and the custom-op library (g++).
#pragma once

#include "device/abi.h"

namespace onnxopt {

// x_pixel, residual_pixel, y_pixel: elements from one pixel to the next, which are more than a pixel has where the
// tensor is a part of a wider one. All pointers and pixels are multiples of 16 bytes. bias, residual, slope: null where
// the kernel reads none. row_tiles, image_tiles: tiles that are a row of an image, and an image. value: the bound of a
// clip, the slope of a leaky ReLU.
struct DenseConvolutionParams {
  const void* x;
  const void* w;
  const void* bias;
  const void* residual;
  const void* slope;
  void* y;
  int x_pixel;
  int residual_pixel;
  int y_pixel;
  int height;
  int width;
  int out_height;
  int out_width;
  int pad_top;
  int pad_left;
  unsigned int tiles;
  float value;
  Divisor<unsigned int> row_tiles;
  Divisor<unsigned int> image_tiles;
};

}  // namespace onnxopt
