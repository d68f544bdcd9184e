// What the host hands to a product with weights of 2, 4 or 8 bits, as com.microsoft.MatMulNBits stores them: plain data
// for NVRTC and g++.
#pragma once

namespace onnxopt {

// output[r, c] = activation(alpha * sum over k of a[r, k] * weight[c, k] + bias[c] + beta * residual[r, c])
// weight[c, k] = (b[c, k] - zeros[c, k / group]) * scales[c, k / group]
//
// Where there is a gate, the weight has twice as many columns, and gate(g) * u is stored: g and u are what the same
// sums and bias give for column c and for column c + columns.
//
// a [rows, depth], b [columns, groups, bytes of a group], scales [columns, groups], zeros [columns, groups], packed as
// the codes of b are, or floats, or nullptr for the middle of the codes; all contiguous. Rows of a and b are aligned to
// 16 bytes; those of a end with whole words of codes.
struct MatMulNBitsParams {
  const void* a;
  const void* b;
  const void* scales;
  const void* zeros;
  const void* bias;      // or nullptr
  const void* residual;  // or nullptr
  void* output;
  unsigned int rows;
  unsigned int columns;
  unsigned int depth;
  unsigned int groups;
  unsigned int b_is_constant;  // nothing on the stream writes b, scales and zeros: they may be read early
  float alpha;
  float beta;
};

// output[r, c] = gate(input[r, c]) * input[r, c + columns], input [rows, 2 columns].
struct GateParams {
  const void* input;
  void* output;
  unsigned int rows;
  unsigned int columns;
};

// output[c, k] = weight[c, k], [columns, depth] and contiguous.
struct DequantizeParams {
  const void* b;
  const void* scales;
  const void* zeros;
  void* output;
  unsigned int columns;
  unsigned int depth;
  unsigned int groups;
};

}  // namespace onnxopt
