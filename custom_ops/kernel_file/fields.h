// Parts of kernels.json that several kinds of kernels have.
#pragma once

#include "kernel_file/kernel_file.h"
#include "support/json_reader.h"

namespace onnxopt {

// The fields of a program, which lie in `json` itself; verified.
Program ReadProgram(const JsonReader& json);

// The fields that entry points of every kind have.
Variant ReadVariant(const JsonReader& json);

}  // namespace onnxopt
