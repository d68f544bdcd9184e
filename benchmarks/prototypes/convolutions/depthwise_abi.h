// What the host hands to a depthwise convolution. x is [batch, height, width, channels], y [batch, out_height,
// out_width, channels], weight [channels, kernel_height, kernel_width], all contiguous; an image has less than 2^32
// bytes.
#pragma once

namespace onnxopt {

// n / divisor == (mulhi(n, multiplier) + n) >> shift for n < 2^31.
struct TileDivisor {
  unsigned int divisor;
  unsigned int multiplier;
  unsigned int shift;
};

struct alignas(8) DepthwiseShape {
  int batch;
  int height;
  int width;
  int channels;
  int out_height;
  int out_width;
  int pad_top;
  int pad_left;
  int tiles;              // of all images; those of an image follow each other, row by row
  TileDivisor per_image;  // tiles of an image (of some images that share a tile)
  TileDivisor per_row;    // tiles along the width
};

// sums, [batch, tiles of an image, channels]: of what each tile of an image writes, before it is rounded. Or null.
template <typename T, typename Before, typename After>
struct DepthwiseParams {
  const T* x;
  const T* weight;
  T* y;
  float* sums;
  DepthwiseShape shape;
  Before before;
  After after;
};

}  // namespace onnxopt
