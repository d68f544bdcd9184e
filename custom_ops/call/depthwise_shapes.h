// The output shape of a depthwise node for ONNX Runtime's graph.
#pragma once

#include "program/depthwise.h"
#include "support/ort.h"

namespace onnxopt {

// Sets the output's dtype and shape where x's rank is known. Throws Error where the node has another number of inputs.
void InferShapes(const Depthwise& depthwise, OrtShapeInferContext* context);

}  // namespace onnxopt
