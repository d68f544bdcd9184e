// The output shape of a gemm node for ONNX Runtime's graph.
#pragma once

#include "program/gemm.h"
#include "support/ort.h"

namespace onnxopt {

// Sets the outputs' dtype and shape where the ranks are known; leaves it unset otherwise, which means unknown.
// Throws Error where the node has another number of inputs.
void InferShapes(const Gemm& gemm, OrtShapeInferContext* context);

}  // namespace onnxopt
