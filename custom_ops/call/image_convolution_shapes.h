// The output shape of a convolution of images for ONNX Runtime's graph.
#pragma once

#include "program/image_convolution.h"
#include "support/ort.h"

namespace onnxopt {

// Sets the output's dtype and shape where x's rank is known. Throws Error where the node has another number of inputs.
void InferShapes(const ImageConvolution& convolution, OrtShapeInferContext* context);

}  // namespace onnxopt
