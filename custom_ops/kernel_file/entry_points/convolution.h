// Convolutions in kernels.json: calls of cuDNN, without entry points.
#pragma once

#include "kernel_file/kernel.h"
#include "program/generated/convolution.h"
#include "support/json_reader.h"

namespace onnxopt {

inline Variant ReadConvolutionVariant(const JsonReader& json, const Convolution& /*meaning*/) {
  json.Fail("is an entry point of a convolution, which has none");
}

inline void CheckEntryPoints(const JsonReader& /*json*/, bool /*has_fatbin*/, const Convolution& /*meaning*/,
                             std::vector<Variant>* /*variants*/) {}

}  // namespace onnxopt
