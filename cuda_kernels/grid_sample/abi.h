// What the host hands to the kernels of samples: plain data for NVRTC and g++.
#pragma once

#include "device/abi.h"

namespace onnxopt {

constexpr int kGridSampleInputs = 16;
constexpr int kGridSampleLevels = 8;

// Elements from one b, head, output position and point to the next.
struct GridSamplePointSteps {
  long long batch;
  long long head;
  long long position;
  long long point;
};

// Elements from one b, head, channel, and pixel of the data or position of the result, to the next. From one pixel of
// the data to the next there are less than 2^31.
struct GridSampleMapSteps {
  long long batch;
  long long head;
  long long channel;
  long long pixel;
};

// data, grid: elements at which the map and its part of the grid begin. points: of each output position.
struct GridSampleMap {
  long long data;
  long long grid;
  int depth;
  int height;
  int width;
  int points;
};

// input: as the kernel's meaning numbers them. first: the b of the first thread. count: of threads, below 2^31. groups:
// of channels that a thread computes; positions: of the result.
struct GridSampleParams {
  const void* input[kGridSampleInputs];
  void* y;
  long long first;
  unsigned int count;
  int channels;
  GridSampleMapSteps data;
  GridSampleMapSteps result;
  GridSamplePointSteps grid;
  GridSamplePointSteps weights;
  GridSampleMap map[kGridSampleLevels];
  Divisor<unsigned int> groups;
  Divisor<unsigned int> positions;
  Divisor<unsigned int> heads;
};

}  // namespace onnxopt
