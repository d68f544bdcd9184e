// A convolution by entry points of ours.
#pragma once

#include "call/convolution.h"
#include "cuda/launch/stream.h"

namespace onnxopt::cuda {

// The operands of one call.
struct OwnOperands {
  const void* x;
  const void* w;
  const void* bias;      // or nullptr
  const void* residual;  // or nullptr
  const void* slope;     // or nullptr
  const void* scale;     // or nullptr
  void* y;
};

class OwnConvolution {
 public:
  OwnConvolution() = default;
  OwnConvolution(const OwnConvolution&) = delete;
  OwnConvolution& operator=(const OwnConvolution&) = delete;
  virtual ~OwnConvolution() = default;

  // Whether Run enqueues a call of these sizes whose tensors are aligned. A context is current.
  virtual bool Takes(const ConvolutionSizes& sizes) const = 0;

  // Enqueues the convolution. False where no entry point fits. A context is current.
  virtual bool Run(const ConvolutionSizes& sizes, const OwnOperands& at, Stream stream) const = 0;
};

}  // namespace onnxopt::cuda
