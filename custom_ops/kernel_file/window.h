// The window of a convolution in kernels.json.
#pragma once

#include "program/window.h"
#include "support/json_reader.h"

namespace onnxopt {

// Throws Error naming the place of what is not as window.py writes it.
Window ReadWindow(const JsonReader& json);

}  // namespace onnxopt
