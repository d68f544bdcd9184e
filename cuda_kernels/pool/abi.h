// What the host hands to the kernels of pools: plain data for NVRTC and g++.
#pragma once

#include "device/abi.h"

namespace onnxopt {

// x: [images, depth, height, width, channels]; y: [images, out_depth, out_height, out_width, channels]; the depths are
// 1 of images. A thread's number is, from the innermost on, its group of channels, its tile of columns, its tile of
// rows, its plane and its image; the divisors are how many there are of each but the last. count: of threads, below
// 2^31.
struct PoolParams {
  const void* x;
  void* y;
  unsigned int count;
  int depth;
  int height;
  int width;
  int channels;
  int out_height;
  int out_width;
  int pad_front;
  int pad_top;
  int pad_left;
  Divisor<unsigned int> groups;
  Divisor<unsigned int> across;
  Divisor<unsigned int> down;
  Divisor<unsigned int> through;
};

}  // namespace onnxopt
