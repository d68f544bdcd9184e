// One call of a block of convolutions.
#pragma once

#include <vector>

#include "call/convolution.h"
#include "program/block.h"

namespace onnxopt {

// steps: the sizes of every convolution. shapes: of the inputs, the outputs, and the tensors that stay inside.
struct BlockCall {
  std::vector<ConvolutionSizes> steps;
  std::vector<Shape> shapes;
};

// Throws Error with shapes where they do not fit together.
BlockCall MakeBlock(const Block& block, const Shape* inputs);

// Where the tensors that stay inside lie in one buffer, in bytes from its start: two that are needed at the same time
// do not overlap. total: bytes of the buffer.
struct BlockMemory {
  std::vector<std::size_t> offsets;
  std::size_t total;
};
BlockMemory PlaceInside(const Block& block, const BlockCall& call);

}  // namespace onnxopt
