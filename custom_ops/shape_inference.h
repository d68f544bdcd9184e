// Output shapes of a fused node for ONNX Runtime's graph, where dims may be symbolic or unknown.
#pragma once

#include "ort.h"
#include "program.h"

namespace onnxopt {

// Sets the dtype and shape of every output that can be told; leaves the others unset, which means unknown.
// Throws Error where the node has another number of inputs.
void InferShapes(const Program& program, OrtShapeInferContext* context);

}  // namespace onnxopt
