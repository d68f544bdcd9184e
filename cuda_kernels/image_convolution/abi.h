// What the host hands to a convolution of images. x is [batch, channels, height, width] or [batch, height, width,
// channels], y [batch, out_height, out_width, filters], weight [filters, kernel_height, kernel_width, channels or
// more], all contiguous.
#pragma once

#include "device/abi.h"

namespace onnxopt {

constexpr int kImageConvolutionInputs = 16;

// input: as the kernel's meaning numbers them. A block takes every `step`-th of `tiles`; `of_row` tiles are a row of an
// image, `of_image` tiles an image. plain: whether a tensor is not aligned to the accesses of products.
struct ImageConvolutionParams {
  const void* input[kImageConvolutionInputs];
  void* y;
  int height;
  int width;
  int out_height;
  int out_width;
  int pad_top;
  int pad_left;
  unsigned int tiles;
  unsigned int step;
  unsigned int plain;
  Divisor<unsigned int> of_row;
  Divisor<unsigned int> of_image;
};

}  // namespace onnxopt
