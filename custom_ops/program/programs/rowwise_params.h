// The parameter block of a rowwise kernel: the layout of rowwise/abi.h's RowParams.
#pragma once

#include "program/programs/pointwise_params.h"
#include "rowwise/abi.h"

namespace onnxopt::cuda {

constexpr std::size_t kRowOutputsAt = 3 * sizeof(unsigned long long);

constexpr std::size_t RowDataAt(std::size_t outputs) { return kRowOutputsAt + outputs * sizeof(void*); }

constexpr std::size_t RowInputsAt(std::size_t inputs, std::size_t outputs) {
  return RowDataAt(outputs) + inputs * sizeof(void*);
}

constexpr std::size_t RowParamsSize(unsigned index, std::size_t inputs, std::size_t outputs) {
  return ParamsSize(index, inputs, outputs) - InputsAt(inputs, outputs) + RowInputsAt(inputs, outputs);
}

template <typename P>
constexpr bool SameRowLayout(unsigned index, std::size_t inputs, std::size_t outputs) {
  return sizeof(P) == RowParamsSize(index, inputs, outputs) && offsetof(P, output) == kRowOutputsAt &&
         offsetof(P, data) == RowDataAt(outputs) && offsetof(P, input) == RowInputsAt(inputs, outputs);
}

static_assert(SameRowLayout<RowParams<Index32, 1, 1>>(32, 1, 1) && SameRowLayout<RowParams<Index32, 3, 2>>(32, 3, 2));
static_assert(SameRowLayout<RowParams<Index64, 1, 1>>(64, 1, 1) && SameRowLayout<RowParams<Index64, 3, 2>>(64, 3, 2));

using Split = SplitParams<Index32, 3, 2>;
static_assert(offsetof(Split, of) == sizeof(Parts));
static_assert(sizeof(SplitParams<Index64, 1, 1>) == sizeof(Parts) + RowParamsSize(64, 1, 1));

}  // namespace onnxopt::cuda
