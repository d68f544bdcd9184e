// What the host hands to a product of many rows, and to what follows one of cuBLASLt's: plain data for NVRTC and g++.
#pragma once

#include "device/products/matrix_map.h"

namespace onnxopt {

constexpr unsigned kTileRows = 128;       // rows of the result that a block computes at once
constexpr unsigned kTileRowBytes = 128;   // of the depth of a and b that it brings at once
constexpr unsigned kActivatedBytes = 16;  // that a thread stores

// output[r, c] = activation(alpha * sum over k of a[r, k] * b[k, c] + bias[c]), contiguous. columns are a multiple
// of 16 bytes. a is a matrix of `rows` rows, in tiles of kTileRows x kTileRowBytes. b is one of `depth` rows, in tiles
// as deep x 64; where it lies transposed, one of `columns` rows, in tiles of the entry point's columns x kTileRowBytes.
struct LargeProductParams {
  MatrixMap a;
  MatrixMap b;
  const void* bias;  // or nullptr
  void* output;
  unsigned int rows;
  unsigned int columns;
  unsigned int depth;
  float alpha;
};

// output[i] = activation(output[i]), of so many elements.
struct ActivateParams {
  void* output;
  unsigned long long count;
};

}  // namespace onnxopt
