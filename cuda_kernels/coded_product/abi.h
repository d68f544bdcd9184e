// What the host hands to a product of codes: y [rows, columns] of x [rows, depth] and w [columns, depth], all
// contiguous. Shared by the kernels (NVRTC) and the custom-op library (g++).
#pragma once

namespace onnxopt {

// scales, bias: one a column, or null where the kernel reads none; residual [rows, columns] likewise. depth and columns
// are multiples of 16, and x, w, residual and y of 16 bytes. across: tiles that are side by side.
struct CodedProductParams {
  const void* x;
  const void* w;
  const void* scales;
  const void* bias;
  const void* residual;
  void* y;
  unsigned int rows;
  unsigned int columns;
  unsigned int depth;
  unsigned int tiles;
  unsigned int across;
};

}  // namespace onnxopt
