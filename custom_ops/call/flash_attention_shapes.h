// The output shape of an attention of many queries for ONNX Runtime's graph.
#pragma once

#include "program/flash_attention.h"
#include "support/ort.h"

namespace onnxopt {

// Sets the output's dtype and shape where q's rank is known. Throws Error where the node has another number of inputs.
void InferShapes(const FlashAttention& attention, OrtShapeInferContext* context);

}  // namespace onnxopt
