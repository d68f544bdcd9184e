// A convolution and its epilogue as an operation graph of cuDNN.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "call/convolution.h"
#include "cuda/convolution/descriptor.h"
#include "program/generated/convolution.h"

namespace onnxopt::cuda {

// What a plan depends on besides GPU and cuDNN.
struct ConvolutionProblem {
  Convolution convolution;
  ConvolutionSizes sizes;
  bool tf32 = false;            // float32 products may round their operands to TF32
  std::int64_t alignment = 16;  // bytes, of every operand

  // As "float16 x 32x56x56x64 w 64x3x3x64 ...": equal where and only where a plan serves both, in every process.
  std::string Describe() const;
  // Numbers that its graph holds beside the plan, as text.
  std::string Numbers() const;
  // Whether an operand has other channels between its pixels.
  bool HasParts() const {
    return sizes.x_pixel != sizes.c || sizes.y_pixel != sizes.k ||
           (convolution.residual && sizes.residual_pixel != sizes.k);
  }
  // The same with tensors that have no other channels.
  ConvolutionProblem Packed() const;
  // The same without bias, residual and activation.
  ConvolutionProblem Bare() const;
  // The same without an activation that cuDNN compiles a kernel for, and what follows it.
  ConvolutionProblem Ready() const;
  // Of it, what a kernel that is ready computes in tensors that have no other channels, where cuDNN would compile one.
  ConvolutionProblem WithoutCompiling() const;
  // The power of two that is next to the number of the result's pixels.
  int PowerOfPixels() const;
  // The problem that stands for all that differ from it in batch, height and width and have about 2^power pixels.
  // Nothing where the window does not fit.
  std::optional<ConvolutionProblem> OfPixels(int power) const;
  // Whether cuDNN has no kernel ready for it, as far as is known, and compiles one.
  bool Compiles() const;
};

// What the tensors of a graph are called.
enum class Operand : std::int64_t { kX = 1, kW = 2, kY = 3, kBias = 4, kResidual = 5, kSlope = 6, kScale = 7 };

// A tensor of one number, which lies in host memory.
struct Scalar {
  std::int64_t id;
  float value;
};

// The finalized graph. Its operations live as long as it does.
struct ConvolutionGraph {
  std::vector<cudnn::Descriptor> parts;
  cudnn::Descriptor graph;
  std::vector<Scalar> scalars;
};

// Throws cudnn::Refused where cuDNN does not take it.
ConvolutionGraph MakeGraph(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionProblem& problem);

}  // namespace onnxopt::cuda
