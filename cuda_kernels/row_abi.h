// What the host hands to a rowwise kernel, as abi.h does for pointwise ones: plain data for NVRTC and g++.
//
// The domain, flattened row-major, is [outer, columns, inner]: a row is the `columns` elements that are `inner` apart,
// and row r begins at element (r / inner) * columns * inner + r % inner. Inputs lie over it as abi.h says; outputs are
// contiguous, with one element for each of the domain or one a row.
#pragma once

#include "abi.h"

namespace onnxopt {

template <typename Index, int kInputs, int kOutputs>
struct RowParams {
  unsigned long long rows;
  unsigned long long columns;
  unsigned long long inner;
  void* output[kOutputs];
  Input<Index> input[kInputs];
};

}  // namespace onnxopt
