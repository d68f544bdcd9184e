// What the host hands to the two products of a squeeze-excite: plain data for NVRTC and g++.
#pragma once

namespace onnxopt {

// mean: [rows, channels]; null where the kernel reads sums: [rows, tiles, channels], whose totals over the tiles are
// `pixels` times the means. weight: [hidden, channels] and [outputs, hidden]; bias: [hidden] and [outputs], or null.
// y: [rows, outputs].
// Where a row has many tiles, a launch ahead adds `tiles_of_fold` of them at a time: folded [rows, folds, channels].
struct SqueezeExciteParams {
  const void* mean;
  const float* sums;
  const void* weight[2];
  const void* bias[2];
  void* y;
  int rows;
  int tiles;
  float pixels;
  float* folded;
  int folds;
  int tiles_of_fold;
};

}  // namespace onnxopt
