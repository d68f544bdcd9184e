// Shapes that the graph states.
#pragma once

#include <optional>

#include "program/shape.h"
#include "support/ort.h"

namespace onnxopt::cuda {

// The shape of a node's input where the graph states it as numbers.
std::optional<Shape> KnownShape(const OrtKernelInfo* info, std::size_t input);

}  // namespace onnxopt::cuda
