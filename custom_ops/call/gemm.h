// One call of a gemm kernel, as matrices.
#pragma once

#include "program/gemm.h"
#include "program/shape.h"

namespace onnxopt {

// Neighbouring products of a batch: how far apart their matrices lie, in elements; 0 where one serves all.
struct BatchDim {
  std::int64_t extent;
  std::int64_t stride_a;
  std::int64_t stride_b;
  std::int64_t stride_d;
};

// One call as row-major matrices: m x k times k x n, for every index of the batch dims (outermost first). Rows of b as
// it lies are ldb elements apart. Where there are parts, output and n are of one of them, and its b begins part_b
// elements behind that of the one before. With a gate, output is half as wide as n. The first element of a that is read
// is first_a.
struct Product {
  Shape output;
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;
  std::int64_t ldb;
  std::int64_t part_b;
  std::int64_t first_a;
  std::size_t batch_dims;
  BatchDim batch[kMaxRank];
};

// shapes: of all inputs. Where the output is empty, the batch dims are not set. Throws Error with all shapes where they
// do not fit together.
Product MakeProduct(const Gemm& gemm, const Shape* shapes);

}  // namespace onnxopt
