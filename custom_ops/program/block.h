// What a block of convolutions computes: the C++ side of onnxopt/program/block.py.
#pragma once

#include <optional>
#include <vector>

#include "program/convolution.h"

namespace onnxopt {

// `channels` channels from channel `first` on, of a tensor [N, H, W, of].
struct Part {
  std::size_t tensor;
  std::int64_t first;
  std::int64_t channels;
  std::int64_t of;
};

// One convolution. Its fields x, w, bias and residual are positions among its own operands, in this order.
struct BlockStep {
  Convolution convolution;
  Part x;
  std::size_t w;  // of the block's inputs; so is bias
  std::optional<std::size_t> bias;
  std::optional<Part> residual;
  Part y;
};

// Convolutions that run one after the other. Tensors are numbered: the inputs, then the outputs, then those that stay
// inside. Every channel of a tensor behind the inputs is written by one step, and read by later steps alone.
struct Block {
  Dtype dtype = Dtype::kFloat32;  // of every input and output
  std::size_t inputs = 0;
  std::size_t outputs = 0;
  std::vector<std::int64_t> channels;  // of the tensors behind the inputs
  std::vector<BlockStep> steps;
};

constexpr std::size_t kBlockInputs = 64;
constexpr std::size_t kBlockSteps = 24;

}  // namespace onnxopt
