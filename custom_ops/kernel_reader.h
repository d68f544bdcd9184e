// Parts of kernels.json that several kinds of kernels have.
#pragma once

#include "json_reader.h"
#include "kernel_file.h"

namespace onnxopt {

// The fields of a program, which lie in `json` itself; verified.
Program ReadProgram(const JsonReader& json);

// The fields that entry points of every kind have.
Variant ReadVariant(const JsonReader& json);

}  // namespace onnxopt
