// What the host hands to a depthwise convolution. x is [batch, height, width, channels], y [batch, out_height,
// out_width, channels], weight [kernel_height, kernel_width, 1, channels], all contiguous. Behind a 1x1 convolution x
// has fewer channels.
#pragma once

#include "device/abi.h"

namespace onnxopt {

constexpr int kDepthwiseInputs = 16;

// Of a grid in one dimension. Direct: block = (image * middle + row of tiles) * inner + block of that row, whose
// threads take `outer` groups of channels for each tile. Banded: block = tile * inner + block of channels; `middle`
// tiles are a row of an image, `outer` tiles all rows of it (of the images that share a tile). Expanded: the same,
// where the `inner` blocks of a tile take channels in turn.
struct DepthwiseGrid {
  Divisor<unsigned int> inner;
  Divisor<unsigned int> middle;
  Divisor<unsigned int> outer;
};

// input: as the kernel's meaning numbers them. Those that a program reads by element have y's shape.
// sums: where a kernel sums its results over height and width, [batch, tiles of an image, channels], one sum a tile.
struct DepthwiseParams {
  const void* input[kDepthwiseInputs];
  void* y;
  int batch;
  int height;
  int width;
  int channels;
  int out_height;
  int out_width;
  int pad_top;
  int pad_left;
  DepthwiseGrid grid;
  float* sums;
};

}  // namespace onnxopt
