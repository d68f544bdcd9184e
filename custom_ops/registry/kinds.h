// The kinds of kernels.
#pragma once

#include <string>

#include "registry/kind.h"

namespace onnxopt {

// The kind of this name in kernels.json, or nullptr where there is none.
const Kind* FindKind(const std::string& name);

}  // namespace onnxopt
