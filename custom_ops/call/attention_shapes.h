// Output shapes of an attention node for ONNX Runtime's graph.
#pragma once

#include "program/attention.h"
#include "support/ort.h"

namespace onnxopt {

// Sets the outputs' dtype and shape where the ranks are known.
void InferShapes(const TokenAttention& attention, OrtShapeInferContext* context);

}  // namespace onnxopt
