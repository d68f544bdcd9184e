// Rowwise kernels in kernels.json.
#pragma once

#include "kernel_file/kernel_file.h"
#include "support/json_reader.h"

namespace onnxopt {

// The fields of a rowwise program, which lie in `json` itself; verified.
RowProgram ReadRowProgram(const JsonReader& json);

// launches: of a split variant.
Variant ReadRowVariant(const JsonReader& json, const RowProgram& program, std::size_t launches);

// Throws Error where a split variant is not followed by all of its later passes.
void CheckPasses(const std::vector<Variant>& variants, std::size_t passes, const JsonReader& json);

}  // namespace onnxopt
