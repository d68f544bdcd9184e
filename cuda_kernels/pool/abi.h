// What the host hands to the kernels of pools: plain data for NVRTC and g++.
#pragma once

#include "device/abi.h"

namespace onnxopt {

// x: [images, height, width, channels]; y: [images, out_height, out_width, channels]. A thread's number is, from the
// innermost on, its group of channels, its tile of columns, its tile of rows and its image; the divisors are how many
// there are of each but the last. count: of threads, below 2^31.
struct PoolParams {
  const void* x;
  void* y;
  unsigned int count;
  int height;
  int width;
  int channels;
  int out_height;
  int out_width;
  int pad_top;
  int pad_left;
  Divisor<unsigned int> groups;
  Divisor<unsigned int> across;
  Divisor<unsigned int> down;
};

}  // namespace onnxopt
