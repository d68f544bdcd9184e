// Output shapes of a mixture of experts for ONNX Runtime's graph.
#pragma once

#include "program/experts.h"
#include "support/ort.h"

namespace onnxopt {

// Sets the output's dtype and shape where the tokens' are known.
void InferShapes(const Experts& experts, OrtShapeInferContext* context);

}  // namespace onnxopt
