// The output shape of a pool's node for ONNX Runtime's graph.
#pragma once

#include "program/pool.h"
#include "support/ort.h"

namespace onnxopt {

// Sets the output's dtype and shape where the rank is known.
void InferShapes(const Pool& pool, OrtShapeInferContext* context);

}  // namespace onnxopt
