// The output shapes of a block of convolutions for ONNX Runtime's graph.
#pragma once

#include "program/block.h"
#include "support/ort.h"

namespace onnxopt {

// Sets the dtype and shape of each output where the ranks are known; leaves it unset otherwise, which means unknown.
// Throws Error where the node has another number of inputs.
void InferShapes(const Block& block, OrtShapeInferContext* context);

}  // namespace onnxopt
