// An elementwise program around an operator (onnxopt/program/core.py).
#pragma once

#include <vector>

#include "program/generated/core.h"
#include "program/programs/pointwise.h"

namespace onnxopt {

// Its first operand is the value that passes through; `reads` are the others.
struct Transform {
  Program program;
  std::vector<TransformRead> reads;
};

}  // namespace onnxopt
