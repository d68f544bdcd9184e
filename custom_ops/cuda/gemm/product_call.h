// The call of a product for which a way to run it is chosen.
#pragma once

#include "cuda/gemm/product_key.h"
#include "cuda/launch/cublaslt.h"
#include "cuda/launch/driver.h"
#include "program/shape.h"

namespace onnxopt::cuda {

// The context is current.
struct ProductCall {
  const Driver& driver;
  const cublaslt::Api& api;
  cublaslt::Handle handle;
  Context context;
  Stream stream;
  bool capturing;
  bool states_shapes;  // the graph, of a and b
  bool is_first;       // of the node
  const Shape& a;      // the whole operand
  Scratch scratch;
};

}  // namespace onnxopt::cuda
