// Copies the elements that a block needs under an index map, and evaluates conditions on the index.
#pragma once

#include <cstddef>

#include "program/programs/indexing.h"

namespace onnxopt {

// Writes the `n` elements of `size` bytes that belong to domain elements first .. first + n - 1. Nothing is read where
// a guard of the access does not hold: such elements become zero.
void GatherIndexed(void* out, const void* data, const Access& access, const Condition* conditions, std::size_t size,
                   std::uint64_t first, std::size_t n);

// Writes 1 for each of the domain elements first .. first + n - 1 for which the condition holds, 0 for the others.
void EvaluateCondition(void* out, const Condition& condition, std::uint64_t first, std::size_t n);

}  // namespace onnxopt
