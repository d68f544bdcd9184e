// Rewrites a program so that the CPU evaluator passes over each block less often.
#pragma once

#include "program/programs/pointwise.h"

namespace onnxopt {

// A program with the same results, bit for bit:
//   1 / (exp(-x) + 1)  ->  sigmoid(x)
//   an output stored in 16 bits from a value rounded to that dtype  ->  from the value before rounding
// Instructions that are not needed any more stay; a plan skips them.
Program Peephole(const Program& program);

}  // namespace onnxopt
