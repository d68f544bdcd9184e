// One call of a squeeze-excite kernel: its tensors.
#pragma once

#include "call/core.h"
#include "program/generated/squeeze_excite.h"
#include "program/window.h"
#include "support/ort.h"

namespace onnxopt {

// mean: [rows, channels], null where the map's means take its place. weight, bias: of both products; null for no bias.
// y: [rows, results], null where that has no elements. map: of the depthwise convolution, if there is one.
struct SqueezeExciteCall {
  const void* mean;
  const void* weight[2];
  const void* bias[2];
  void* y;
  std::int64_t rows;
  CoreCall map;
};

// Reads the inputs' shapes and allocates the outputs. Throws Error with the shapes where they do not fit together.
SqueezeExciteCall OpenCall(const SqueezeExcite& meaning, OrtKernelContext* context);

}  // namespace onnxopt
