// A step of a block as a convolution of its own (onnxopt/program/block.py says what its fields mean).
#pragma once

#include "program/generated/block.h"
#include "program/generated/convolution.h"

namespace onnxopt {

// Its operands are x, w, bias, residual and slope, in this order.
Convolution ConvolutionOf(const Block& block, const BlockStep& step);

}  // namespace onnxopt
