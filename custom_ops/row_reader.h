// Rowwise kernels in kernels.json.
#pragma once

#include "json_reader.h"
#include "kernel_file.h"

namespace onnxopt {

// The fields of a rowwise program, which lie in `json` itself; verified.
RowProgram ReadRowProgram(const JsonReader& json);

Variant ReadRowVariant(const JsonReader& json, const RowProgram& program);

// Throws Error where a split variant is not followed by all of its later passes.
void CheckPasses(const std::vector<Variant>& variants, const RowProgram& program, const JsonReader& json);

}  // namespace onnxopt
