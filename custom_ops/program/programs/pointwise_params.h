// The parameter block of a kernel for run-time numbers of inputs and outputs: the layout of pointwise/abi.h's Params.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pointwise/abi.h"

namespace onnxopt::cuda {

// CUDA's limit for kernel parameters on every supported architecture and toolkit.
constexpr std::size_t kMaxParams = 4096;

using Index32 = unsigned int;
using Index64 = unsigned long long;

constexpr std::size_t kOutputsAt = sizeof(unsigned long long);

constexpr std::size_t DataAt(std::size_t outputs) { return kOutputsAt + outputs * sizeof(void*); }

constexpr std::size_t InputsAt(std::size_t inputs, std::size_t outputs) {
  return DataAt(outputs) + inputs * sizeof(void*);
}

constexpr std::size_t ConditionsAt(unsigned index, std::size_t inputs, std::size_t outputs) {
  return InputsAt(inputs, outputs) + inputs * (index == 32 ? sizeof(Input<Index32>) : sizeof(Input<Index64>));
}

constexpr std::size_t ParamsSize(unsigned index, std::size_t inputs, std::size_t outputs, std::size_t conditions = 0) {
  return ConditionsAt(index, inputs, outputs) +
         conditions * (index == 32 ? sizeof(IndexRange<Index32>) : sizeof(IndexRange<Index64>));
}

template <typename P>
constexpr bool SameLayout(unsigned index, std::size_t inputs, std::size_t outputs, std::size_t conditions = 0) {
  return sizeof(P) == ParamsSize(index, inputs, outputs, conditions) && offsetof(P, output) == kOutputsAt &&
         offsetof(P, data) == DataAt(outputs) && offsetof(P, input) == InputsAt(inputs, outputs);
}

static_assert(SameLayout<Params<Index32, 1, 1>>(32, 1, 1) && SameLayout<Params<Index32, 3, 2>>(32, 3, 2));
static_assert(SameLayout<Params<Index64, 1, 1>>(64, 1, 1) && SameLayout<Params<Index64, 3, 2>>(64, 3, 2));
static_assert(SameLayout<Params<Index32, 3, 2, 3>>(32, 3, 2, 3) && SameLayout<Params<Index64, 3, 2, 1>>(64, 3, 2, 1));
using Conditional = Params<Index32, 3, 2, 3>;
using Tiled = TiledParams<Index32, 3, 2>;
static_assert(offsetof(Conditional, condition) == ConditionsAt(32, 3, 2));
static_assert(offsetof(Tiled, of) == sizeof(Tiles<Index32>) && sizeof(Tiles<Index32>) % 8 == 0);

}  // namespace onnxopt::cuda
