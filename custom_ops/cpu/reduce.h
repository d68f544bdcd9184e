// Reducing arrays in cache, for the CPU kernel of rowwise regions.
#pragma once

#include <cstddef>

#include "program/programs/rowwise.h"

namespace onnxopt {

// Fills `n` elements of a compute dtype with what leaves the others as they are.
void FillIdentity(Reduction reduction, Dtype dtype, void* to, std::size_t n);

// Merges `n` elements, one row's, into *to.
void ReduceRun(Reduction reduction, Dtype dtype, void* to, const void* from, std::size_t n);

// Merges element k of `from` into element k of `to`, for `n` neighbouring rows.
void ReduceAcross(Reduction reduction, Dtype dtype, void* to, const void* from, std::size_t n);

}  // namespace onnxopt
