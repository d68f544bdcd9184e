// Output shapes of a rowwise node for ONNX Runtime's graph.
#pragma once

#include "program/rowwise.h"
#include "support/ort.h"

namespace onnxopt {

// Sets the dtype and shape of every output that can be told. Throws Error where the node has another number of inputs.
void InferShapes(const RowProgram& program, OrtShapeInferContext* context);

}  // namespace onnxopt
