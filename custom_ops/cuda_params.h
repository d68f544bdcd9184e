// The parameter block of a kernel for run-time numbers of inputs and outputs: the layout of abi.h's Params.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi.h"

namespace onnxopt::cuda {

// CUDA's limit for kernel parameters on every supported architecture and toolkit.
constexpr std::size_t kMaxParams = 4096;

using Index32 = unsigned int;
using Index64 = unsigned long long;

constexpr std::size_t kOutputsAt = sizeof(unsigned long long);

constexpr std::size_t InputsAt(std::size_t outputs) { return kOutputsAt + outputs * sizeof(void*); }

constexpr std::size_t ParamsSize(unsigned index, std::size_t inputs, std::size_t outputs) {
  return InputsAt(outputs) + inputs * (index == 32 ? sizeof(Input<Index32>) : sizeof(Input<Index64>));
}

template <typename P>
constexpr bool SameLayout(unsigned index, std::size_t inputs, std::size_t outputs) {
  return sizeof(P) == ParamsSize(index, inputs, outputs) && offsetof(P, output) == kOutputsAt &&
         offsetof(P, input) == InputsAt(outputs);
}

static_assert(SameLayout<Params<Index32, 1, 1>>(32, 1, 1) && SameLayout<Params<Index32, 3, 2>>(32, 3, 2));
static_assert(SameLayout<Params<Index64, 1, 1>>(64, 1, 1) && SameLayout<Params<Index64, 3, 2>>(64, 3, 2));

}  // namespace onnxopt::cuda
