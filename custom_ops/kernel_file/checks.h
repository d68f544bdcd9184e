// What no rule of a schema can say, by hand: the twins of `check` and `positions` in onnxopt/program/.
#pragma once

#include "kernel_file/field_readers.h"
#include "program/generated/block.h"
#include "program/generated/squeeze_excite.h"
#include "support/json_reader.h"

namespace onnxopt {

// Steps write every channel of the block's own tensors once, and read what earlier steps wrote.
void Check(const JsonReader& json, const Block& block);
void AddReads(const Block& block, InputsRead* read);

// The map is of the first inputs and the first output.
void Check(const JsonReader& json, const SqueezeExcite& meaning);
void AddReads(const SqueezeExcite& meaning, InputsRead* read);

}  // namespace onnxopt
