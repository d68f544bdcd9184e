// One call of a kernel of samples: its tensors, and how they are stored.
#pragma once

#include "grid_sample/abi.h"
#include "program/generated/grid_sample.h"
#include "program/shape.h"
#include "support/ort.h"

namespace onnxopt {

// input: as the meaning numbers them. y: null where the result has no elements. Sample n is b * heads + head of
// `batch` * `heads`. map: of each level.
struct GridSampleCall {
  const void* input[kGridSampleInputs];
  void* y;
  std::int64_t batch;
  std::int64_t heads;
  std::int64_t channels;
  std::int64_t positions;
  Shape result_shape;
  GridSampleMapSteps data;
  GridSampleMapSteps result;
  GridSamplePointSteps grid;
  GridSamplePointSteps weights;
  GridSampleMap map[kGridSampleLevels];
};

// Reads the inputs' shapes and allocates the output. Throws Error with the shapes where they do not fit together, and
// where a view reaches beyond its tensor.
GridSampleCall OpenCall(const GridSample& meaning, OrtKernelContext* context);

}  // namespace onnxopt
