// What the host hands to a pointwise kernel: plain data for NVRTC and g++.
//
// A kernel's single parameter is Params<Index, inputs, outputs, conditions>, passed by value. `count`: elements of the
// domain.
#pragma once

#include "device/abi.h"

namespace onnxopt {

constexpr int kMaxTileSide = 4096;

// Outputs with a null pointer are not written (the host launches once for each distinct output shape). What every
// launch reads comes first and together: a small kernel waits for each line of its parameters.
template <typename Index, int kInputs, int kOutputs, int kConditions = 0>
struct Params {
  unsigned long long count;
  void* output[kOutputs];
  const void* data[kInputs];  // as in `input`
  Input<Index> input[kInputs];
  IndexRange<Index> condition[kConditions];
};

template <typename Index, int kInputs, int kOutputs>
struct Params<Index, kInputs, kOutputs, 0> {
  unsigned long long count;
  void* output[kOutputs];
  const void* data[kInputs];
  Input<Index> input[kInputs];
};

// Of a tiled launch. The domain is seen as outer x columns x rows, row-major: element x + rows * (y + columns * outer).
// Blocks take tiles of rows and columns, those along the rows first. A whole tile has all rows there are.
template <typename Index>
struct Tiles {
  Index rows;
  Index columns;
  Divisor<Index> along_rows;     // tiles along the rows
  Divisor<Index> along_columns;  // tiles along the columns
};

template <typename Index, int kInputs, int kOutputs, int kConditions = 0>
struct TiledParams {
  Tiles<Index> tiles;
  Params<Index, kInputs, kOutputs, kConditions> of;
};

}  // namespace onnxopt
