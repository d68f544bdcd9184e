// The output shape of a convolution node for ONNX Runtime's graph.
#pragma once

#include "program/convolution.h"
#include "support/ort.h"

namespace onnxopt {

// Sets the output's dtype and shape where the ranks are known; leaves it unset otherwise, which means unknown.
// Throws Error where the node has another number of inputs.
void InferShapes(const Convolution& convolution, OrtShapeInferContext* context);

}  // namespace onnxopt
