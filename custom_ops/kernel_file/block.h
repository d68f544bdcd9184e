// Blocks of convolutions in kernels.json.
#pragma once

#include <vector>

#include "program/block.h"
#include "support/json_reader.h"

namespace onnxopt {

// The fields of a block. Throws Error naming the place of what is not as block.py writes it.
Block ReadBlock(const JsonReader& json, const std::vector<Dtype>& inputs, const std::vector<Dtype>& outputs);

}  // namespace onnxopt
