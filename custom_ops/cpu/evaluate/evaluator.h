// Primitives over blocks of elements, compiled once per instruction set.
#pragma once

#include <cstddef>

#include "program/dtype.h"
#include "program/programs/primitives.h"

namespace onnxopt {

// Computes `n` >= 1 elements of `out` from the operands, which are dense arrays or, where the step was asked for with
// that operand as a splat, one element. `out` overlaps no operand. Nothing need be aligned.
using StepFunction = void (*)(void* out, const void* a, const void* b, const void* c, std::size_t n);

// Which operands are splats: bit k for operand k.
using Splats = unsigned;

// What a step computes. dtype: of the result. operand: dtype of the last operand (casts: of the only one).
struct StepKey {
  Op op;
  Dtype dtype;
  Dtype operand;
  Dtype storage;  // of narrow
};

struct Evaluator {
  const char* name;
  // nullptr where there is no step for these splats; with none there is always one for a verified instruction.
  StepFunction (*step)(const StepKey& key, Splats splats);
  // From storage to compute dtype and back; nullptr where they are the same.
  StepFunction (*load)(Dtype storage);
  StepFunction (*store)(Dtype storage);
  // Copies one element of `size` bytes to every element of the result.
  StepFunction (*fill)(std::size_t size);
  // Sets the byte at `out` to 1 where one of the integers of `size` bytes is zero; else it stays.
  StepFunction (*find_zero)(std::size_t size);
};

}  // namespace onnxopt
