// What a gemm kernel computes: the C++ side of onnxopt/gemm.py.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "program/dtype.h"
#include "program/shape.h"

namespace onnxopt {

class JsonReader;

enum class Activation : std::uint8_t { kNone, kRelu, kGeluTanh };

// output = activation(alpha * op(a) @ op(b) + bias + beta * residual), summed in float32. On the GPU some algorithms
// round the product to storage once before they add to it, as separate operators would.
//
// op swaps the last two dims where asked for; leading dims broadcast as MatMul's do. bias is one vector along the
// output's last dim, residual has the output's shape.
//
// Several outputs are equal parts of the product's columns, side by side: Split along the last dim, with b one matrix
// and no residual.
struct Gemm {
  Dtype dtype = Dtype::kFloat32;  // of every input and of the output
  std::size_t inputs = 2;
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
};

constexpr std::size_t kGemmInputs = 4;
constexpr std::size_t kGemmParts = 8;

// The fields of a gemm kernel. Throws Error naming the place of what is not as gemm.py writes it.
Gemm ReadGemm(const JsonReader& json, const std::vector<Dtype>& inputs, const std::vector<Dtype>& outputs);

// Neighbouring products of a batch: how far apart their matrices lie, in elements; 0 where one serves all.
struct BatchDim {
  std::int64_t extent;
  std::int64_t stride_a;
  std::int64_t stride_b;
  std::int64_t stride_d;
};

// One call as row-major matrices: m x k times k x n, for every index of the batch dims (outermost first). Rows of b as
// it lies are ldb elements apart. Where there are parts, output and n are of one of them, and its b begins part_b
// elements behind that of the one before.
struct Product {
  Shape output;
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;
  std::int64_t ldb;
  std::int64_t part_b;
  std::size_t batch_dims;
  BatchDim batch[kMaxRank];
};

// Throws Error with all shapes where they do not fit together.
Product MakeProduct(const Gemm& gemm, const Shape* inputs);

}  // namespace onnxopt
