// The output shape of a group norm's node for ONNX Runtime's graph.
#pragma once

#include "program/group_norm.h"
#include "support/ort.h"

namespace onnxopt {

// Sets the output's dtype and shape where x's rank is known. Throws Error where the node has another number of inputs.
void InferShapes(const GroupNorm& norm, OrtShapeInferContext* context);

}  // namespace onnxopt
