// What the host hands to a rowwise kernel: plain data for NVRTC and g++.
//
// The domain, flattened row-major, is [outer, columns, inner]: a row is the `columns` elements that are `inner` apart,
// and row r begins at element (r / inner) * columns * inner + r % inner. Inputs lie over it as device/abi.h says;
// outputs are contiguous, with one element for each of the domain or one a row.
#pragma once

#include "device/abi.h"

namespace onnxopt {

// What every launch reads comes first and together, as in pointwise/abi.h's Params.
template <typename Index, int kInputs, int kOutputs>
struct RowParams {
  unsigned long long rows;
  unsigned long long columns;
  unsigned long long inner;
  void* output[kOutputs];
  const void* data[kInputs];  // as in `input`
  Input<Index> input[kInputs];
};

// Of a split launch: every row is cut into `parts` of part_columns each (the last may be shorter), a block for each.
// `scratch` holds what the stages before left: for every stage, one Partial a part of every row.
struct Parts {
  void* scratch;
  unsigned long long parts;
  unsigned long long part_columns;
};

template <typename Index, int kInputs, int kOutputs>
struct SplitParams {
  Parts parts;
  RowParams<Index, kInputs, kOutputs> of;
};

}  // namespace onnxopt
