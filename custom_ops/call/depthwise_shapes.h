// The output shape of a depthwise node for ONNX Runtime's graph.
#pragma once

#include <optional>

#include "call/dims.h"
#include "program/depthwise.h"
#include "support/ort.h"

namespace onnxopt {

// Sets the output's dtype and shape where x's rank is known. Throws Error where the node has another number of inputs.
void InferShapes(const Depthwise& depthwise, OrtShapeInferContext* context);

// Nothing where x's rank is not known.
std::optional<Dims> ResultDims(const Depthwise& depthwise, const std::optional<Dims>& x);

}  // namespace onnxopt
