// Rowwise kernels in kernels.json.
#pragma once

#include "json_reader.h"
#include "kernel_file.h"

namespace onnxopt {

// The fields of a rowwise program, which lie in `json` itself; verified.
RowProgram ReadRowProgram(const JsonReader& json);

Variant ReadRowVariant(const JsonReader& json, const RowProgram& program);

}  // namespace onnxopt
