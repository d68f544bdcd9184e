// Convolution kernels in kernels.json.
#pragma once

#include <vector>

#include "program/convolution.h"
#include "support/json_reader.h"

namespace onnxopt {

// The fields of a convolution kernel. Throws Error naming the place of what is not as convolution.py writes it.
Convolution ReadConvolution(const JsonReader& json, const std::vector<Dtype>& inputs,
                            const std::vector<Dtype>& outputs);

// Fields that blocks of convolutions have too.
std::int64_t ReadGroup(const JsonReader& json);
ConvolutionActivation ReadConvolutionActivation(const JsonReader& json);

}  // namespace onnxopt
