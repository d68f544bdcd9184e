// One call of a mixture of experts: its tensors.
#pragma once

#include "program/experts.h"
#include "support/ort.h"

namespace onnxopt {

// y: nullptr where there are no tokens.
struct ExpertsCall {
  std::int64_t tokens;
  const void* x;
  const std::int64_t* ids;
  const void* factors;
  const void* weight[2];
  const void* bias[2];  // nullptr where there is none
  void* y;
};

// Reads the inputs' shapes and allocates the output. Throws Error with the shape that does not fit.
ExpertsCall OpenCall(const Experts& experts, OrtKernelContext* context);

}  // namespace onnxopt
