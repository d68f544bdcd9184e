// How a product is to run: as it was measured, or as measuring says now, or as cuBLASLt's heuristic expects.
#pragma once

#include "cuda/gemm/product_call.h"
#include "cuda/gemm/product_plan.h"

namespace onnxopt::cuda {

// Chooses the algorithm of a new plan, or a convolution of cuDNN's. Measures on the operands where ONNXOPT_GEMM_TUNE
// asks for it. Where the graph states the shapes, or they are a node's first, it measures too, among fewer algorithms,
// and cuDNN's plans only over few channels. A call that is capturing measures nothing and builds no plan of cuDNN's.
// Throws cublaslt::Refusal where cuBLASLt has no algorithm.
void Choose(const ProductCall& call, const Operands& operands, Plan* plan);

}  // namespace onnxopt::cuda
