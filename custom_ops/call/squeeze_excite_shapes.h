// The output shapes of a squeeze-excite node for ONNX Runtime's graph.
#pragma once

#include "program/squeeze_excite.h"
#include "support/ort.h"

namespace onnxopt {

// Sets the outputs' dtypes and shapes where the ranks are known. Throws Error where the node has another number of
// inputs.
void InferShapes(const SqueezeExcite& meaning, OrtShapeInferContext* context);

}  // namespace onnxopt
