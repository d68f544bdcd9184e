// What a gemm kernel computes: the C++ side of onnxopt/gemm.py.
#pragma once

#include <cstdint>
#include <optional>

#include "program/dtype.h"
#include "support/math.h"

namespace onnxopt {

enum class Activation : std::uint8_t { kNone, kRelu, kGelu, kGeluTanh, kSilu };

// Weights as com.microsoft.MatMulNBits stores them: b is [n, ceil(k / group), group * bits / 8] bytes. scales, zeros:
// positions among the inputs. Without zeros, the middle of the codes stands for zero.
struct PackedIntegers {
  unsigned bits = 4;
  unsigned group = 32;  // codes that share a scale
  std::size_t scales = 0;
  std::optional<std::size_t> zeros;
  bool packed_zeros = false;  // codes, as those of b; otherwise floats

  // How many groups cover so many codes.
  std::int64_t Groups(std::int64_t depth) const { return static_cast<std::int64_t>(CeilDiv(depth, group)); }
  // Bytes of so many groups' codes, and of so many zero points of one column.
  std::int64_t Bytes(std::int64_t groups) const { return groups * group * bits / 8; }
  std::int64_t ZeroBytes(std::int64_t groups) const { return (groups * bits + 7) / 8; }
};

// output = activation(alpha * op(a) @ op(b) + bias + beta * residual), summed in float32. On the GPU some algorithms
// round the product to storage once before they add to it, as separate operators would.
//
// op swaps the last two dims where asked for; leading dims broadcast as MatMul's do. bias is one vector along the
// output's last dim, residual has the output's shape.
//
// Several outputs are equal parts of the product's columns, side by side: Split along the last dim, with b one matrix
// and no residual.
//
// Codes of 8-bit floats, which alpha scales, lie as cuBLASLt takes them: rows of a and of b^T. Where it does not take
// them they are widened to float16.
struct Gemm {
  Dtype dtype = Dtype::kFloat32;     // of the output, the bias and the residual
  Dtype operands = Dtype::kFloat32;  // of a and b: the same, or float16 for float32, or float8e4m3fn for both
  std::size_t inputs = 2;            // some of which may be there for the function's body alone
  std::size_t parts = 1;
  std::size_t a = 0;  // positions among the inputs; two operands may be one input
  std::size_t b = 1;
  std::optional<std::size_t> bias;
  std::optional<std::size_t> residual;
  bool transpose_a = false;
  bool transpose_b = false;
  bool residual_shape = false;  // the output takes the residual's dims: a Reshape that keeps the last one was taken in
  float alpha = 1;
  float beta = 1;
  Activation activation = Activation::kNone;
  // With a packed b alone: the output is gate(g) * u, elementwise, of the halves g and u of the product's columns, side
  // by side, bias included; then there is neither a residual nor an activation, and one part.
  Activation gate = Activation::kNone;
  std::optional<PackedIntegers> packed;  // that b has; it is a transposed matrix then, and operands is the dtype of a
};

// cuBLASLt has no exact GELU: of 16-bit floats alone, whose kernels come with one.
inline bool ActivatesBehind(const Gemm& gemm) { return gemm.activation == Activation::kGelu; }

inline bool HasFloat8Operands(const Gemm& gemm) { return gemm.operands == Dtype::kFloat8E4M3; }

constexpr std::size_t kGemmInputs = 6;
constexpr std::size_t kGemmParts = 8;

}  // namespace onnxopt
