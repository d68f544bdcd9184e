// Entries of session options, as AddSessionConfigEntry sets them.
#pragma once

#include <optional>
#include <string>

#include "support/ort.h"

namespace onnxopt {

// The value of an entry; empty where the options do not have it.
std::optional<std::string> SessionEntry(const OrtSessionOptions* options, const char* name);

}  // namespace onnxopt
