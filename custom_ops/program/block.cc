#include "program/block.h"

namespace onnxopt {

Convolution ConvolutionOf(const Block& block, const BlockStep& step) {
  Convolution convolution;
  convolution.window = step.window;
  convolution.group = step.group;
  convolution.residual_last = step.residual_last;
  convolution.activation = step.activation;
  convolution.activation_value = step.activation_value;
  std::size_t operands = 2;
  if (step.bias) convolution.bias = operands++;
  if (step.residual) convolution.residual = operands++;
  if (step.slope) convolution.slope = operands++;
  convolution.inputs = DtypeList(operands, block.dtype());
  convolution.outputs = {block.dtype()};
  return convolution;
}

}  // namespace onnxopt
