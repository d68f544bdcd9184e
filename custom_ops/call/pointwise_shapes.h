// Output shapes of a pointwise node for ONNX Runtime's graph.
#pragma once

#include "program/pointwise.h"
#include "support/ort.h"

namespace onnxopt {

// Sets the dtype and shape of every output that can be told; leaves the others unset, which means unknown.
// Throws Error where the node has another number of inputs.
void InferShapes(const Program& program, OrtShapeInferContext* context);

}  // namespace onnxopt
