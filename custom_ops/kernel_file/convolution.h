// Convolution kernels in kernels.json.
#pragma once

#include <vector>

#include "program/convolution.h"
#include "support/json_reader.h"

namespace onnxopt {

// The fields of a convolution kernel. Throws Error naming the place of what is not as convolution.py writes it.
Convolution ReadConvolution(const JsonReader& json, const std::vector<Dtype>& inputs,
                            const std::vector<Dtype>& outputs);

// Sets what does not depend on where the operands are: blocks of convolutions have these fields too.
void ReadOperation(const JsonReader& json, Convolution* convolution);

}  // namespace onnxopt
