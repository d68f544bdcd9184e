#include "call/gemm.h"

#include <algorithm>
#include <string>

#include "support/error.h"

namespace onnxopt {
namespace {

[[noreturn]] void Misfit(const Gemm& gemm, const Shape* inputs, const std::string& problem) {
  std::string text = problem + ": a" + (gemm.transpose_a ? "^T " : " ") + ToString(inputs[gemm.a]) + ", b" +
                     (gemm.transpose_b ? "^T " : " ") + ToString(inputs[gemm.b]);
  if (gemm.bias) text += ", bias " + ToString(inputs[*gemm.bias]);
  if (gemm.residual) text += ", residual " + ToString(inputs[*gemm.residual]);
  throw Error(text);
}

Shape Leading(const Shape& shape) {
  Shape leading{};
  leading.rank = shape.rank - 2;
  std::copy_n(shape.dims, leading.rank, leading.dims);
  return leading;
}

// Distances between an operand's matrices along each dim of `batch`, outermost first.
void Strides(const Shape& operand, const Shape& batch, std::int64_t* strides) {
  std::int64_t distance = operand.dims[operand.rank - 1] * operand.dims[operand.rank - 2];
  const std::size_t missing = batch.rank - (operand.rank - 2);
  for (std::size_t k = batch.rank; k-- > 0;) {
    const std::int64_t extent = k < missing ? 1 : operand.dims[k - missing];
    strides[k] = extent == 1 ? 0 : distance;
    distance *= extent;
  }
}

// Appends a dim, or merges it into the one before where every operand goes on at the same pace.
void Append(const BatchDim& dim, Product* product) {
  if (dim.extent == 1) return;
  if (product->batch_dims > 0) {
    BatchDim& outer = product->batch[product->batch_dims - 1];
    if (outer.stride_a == dim.extent * dim.stride_a && outer.stride_b == dim.extent * dim.stride_b &&
        outer.stride_d == dim.extent * dim.stride_d) {
      outer = {outer.extent * dim.extent, dim.stride_a, dim.stride_b, dim.stride_d};
      return;
    }
  }
  product->batch[product->batch_dims++] = dim;
}

// The output is not empty. One matrix b for all: rows of every a are rows of one large matrix. Otherwise products in a
// batch, of as many rows as share a b.
void SetBatch(const Gemm& gemm, const Shape* inputs, const Shape& batch, Product* product) {
  product->batch_dims = 0;
  const bool whole = gemm.rows == 0 || batch.count() == 1;
  if (!gemm.transpose_a && whole && Elements(inputs[gemm.b].dims, inputs[gemm.b].rank - 2) == 1) {
    product->m *= static_cast<std::int64_t>(batch.count());
    return;
  }
  std::int64_t a[kMaxRank];
  std::int64_t b[kMaxRank];
  Strides(inputs[gemm.a], batch, a);
  Strides(inputs[gemm.b], batch, b);
  std::int64_t distance[kMaxRank];
  std::int64_t matrices = product->m * product->n;
  for (std::size_t k = batch.rank; k-- > 0;) {
    distance[k] = matrices;
    matrices *= batch.dims[k];
  }
  std::size_t dims = batch.rank;
  // Matrices of a that lie one behind the other and have the same b: their rows are rows of one.
  while (dims > 0 && !gemm.transpose_a && b[dims - 1] == 0 && a[dims - 1] == product->m * product->k) {
    product->m *= batch.dims[--dims];
  }
  for (std::size_t k = 0; k < dims; ++k) Append({batch.dims[k], a[k], b[k], distance[k]}, product);
}

// The matrix that the codes of b stand for, [n, k].
Shape MatrixOfCodes(const Gemm& gemm, const Shape* inputs) {
  const PackedIntegers& codes = *gemm.packed;
  const Shape& a = inputs[gemm.a];
  const Shape& b = inputs[gemm.b];
  if (a.rank < 2 || b.rank == 0) Misfit(gemm, inputs, "an operand of a product is no matrix");
  Shape matrix{};
  matrix.rank = 2;
  matrix.dims[0] = b.dims[0];
  matrix.dims[1] = a.dims[a.rank - 1];
  const std::int64_t groups = Groups(codes, matrix.dims[1]);
  const auto holds = [&](std::size_t input, std::int64_t of_column) {
    return inputs[input].count() == static_cast<std::uint64_t>(matrix.dims[0] * of_column);
  };
  bool fits = holds(gemm.b, Bytes(codes, groups)) && holds(codes.scales, groups);
  if (codes.zeros) fits = fits && holds(*codes.zeros, gemm.packed_zeros() ? ZeroBytes(codes, groups) : groups);
  if (!fits) Misfit(gemm, inputs, "codes, scales and zero points do not fit together");
  return matrix;
}

}  // namespace

Product MakeProduct(const Gemm& gemm, const Shape* shapes) {
  Shape inputs[Gemm::kMaxInputs];
  std::copy_n(shapes, gemm.inputs.size(), inputs);
  if (gemm.packed) inputs[gemm.b] = MatrixOfCodes(gemm, shapes);
  const Shape& a = inputs[gemm.a];
  const Shape& b = inputs[gemm.b];
  if (a.rank < 2 || b.rank < 2) Misfit(gemm, inputs, "an operand of a product is no matrix");
  const std::int64_t* x = a.dims + a.rank - 2;
  const std::int64_t* y = b.dims + b.rank - 2;
  Product product{};
  product.m = gemm.transpose_a ? x[1] : x[0];
  product.k = gemm.transpose_a ? x[0] : x[1];
  product.n = gemm.transpose_b ? y[0] : y[1];
  product.ldb = y[1];
  if (gemm.rows > 0) {
    if (gemm.first_row + gemm.rows > product.m) Misfit(gemm, inputs, "rows that are read are not there");
    product.m = gemm.rows;
    product.first_a = gemm.first_row * product.k;
  }
  if ((gemm.transpose_b ? y[1] : y[0]) != product.k) Misfit(gemm, inputs, "the matrices do not fit together");
  const auto parts = static_cast<std::int64_t>(gemm.outputs.size());
  if (product.n % parts != 0 || (parts > 1 && Elements(b.dims, b.rank - 2) != 1)) {
    Misfit(gemm, inputs, "the product's columns have no " + std::to_string(parts) + " equal parts");
  }
  Shape batch = Leading(a);
  if (!BroadcastInto(Leading(b), &batch)) Misfit(gemm, inputs, "leading dims do not broadcast");
  if (batch.rank + 2 > kMaxRank) Misfit(gemm, inputs, "too many dims");
  product.output = batch;
  product.output.dims[product.output.rank++] = product.m;
  product.output.dims[product.output.rank++] = product.n;
  if (product.output.count() > 0) SetBatch(gemm, inputs, batch, &product);
  if (gemm.bias) {
    const Shape& bias = inputs[*gemm.bias];
    const bool fits = bias.rank > 0 && bias.dims[bias.rank - 1] == product.n && Elements(bias.dims, bias.rank - 1) == 1;
    if (!fits) Misfit(gemm, inputs, "the bias is not a vector along the last dim");
  }
  if (gemm.residual) {
    const Shape& residual = inputs[*gemm.residual];
    const bool fits = gemm.residual_shape ? residual.count() == product.output.count() && residual.rank > 0 &&
                                                residual.dims[residual.rank - 1] == product.n
                                          : residual == product.output;
    if (!fits) Misfit(gemm, inputs, "the residual does not have the product's shape");
    product.output = residual;
  }
  if (gemm.gate) {
    if (product.n % 2 != 0) Misfit(gemm, inputs, "the product's columns have no two equal parts");
    product.output.dims[product.output.rank - 1] = product.n / 2;
  }
  if (gemm.outputs.size() > 1) {
    product.n /= parts;
    product.part_b = gemm.transpose_b ? product.n * product.k : product.n;
    product.output.dims[product.output.rank - 1] = product.n;
  }
  return product;
}

}  // namespace onnxopt
