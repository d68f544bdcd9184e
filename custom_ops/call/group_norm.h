// One call of a group norm: its tensors.
#pragma once

#include "program/generated/group_norm.h"
#include "support/ort.h"

namespace onnxopt {

// input: as the meaning numbers them. Where the result has no elements, y is null.
struct GroupNormCall {
  const void* input[GroupNorm::kMaxInputs];
  void* y;
  std::int64_t samples;
  std::int64_t pixels;  // of a sample
};

// Reads the inputs' shapes and allocates the output. Throws Error with the shapes where they do not fit together.
GroupNormCall OpenCall(const GroupNorm& norm, OrtKernelContext* context);

}  // namespace onnxopt
