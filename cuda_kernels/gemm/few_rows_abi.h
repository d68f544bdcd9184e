// What the host hands to a product of few rows: plain data for NVRTC and g++.
#pragma once

namespace onnxopt {

// output[r, c] = activation(alpha * sum over k of a[r, k] * b[c, k] + bias[c] + beta * residual[r, c]), all contiguous.
// a and b are aligned to 16 bytes, and so is every row: depth elements are a multiple of that.
struct FewRowsParams {
  const void* a;
  const void* b;
  const void* bias;      // or nullptr
  const void* residual;  // or nullptr
  void* output;
  unsigned int rows;
  unsigned int columns;
  unsigned int depth;
  unsigned int b_is_constant;  // nothing on the stream writes b: it may be read before the kernel ahead has ended
  float alpha;
  float beta;
};

}  // namespace onnxopt
