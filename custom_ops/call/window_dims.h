// The height or width of what a window leaves, in ONNX Runtime's graph.
#pragma once

#include "call/dims.h"
#include "program/window.h"

namespace onnxopt {

// axis: 0 for the height, 1 for the width.
Dim Behind(const Window& window, int axis, const Dim& before);

}  // namespace onnxopt
