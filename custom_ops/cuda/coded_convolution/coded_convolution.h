// Convolutions of codes by entry points of ours.
#pragma once

#include "call/convolution.h"
#include "cuda/launch/launcher.h"
#include "kernel_file/kernel.h"

namespace onnxopt::cuda {

// Where the operands of one call lie.
struct CodedOperands {
  const void* x;
  const void* w;
  const void* scale;     // or nullptr
  const void* bias;      // or nullptr
  const void* residual;  // or nullptr
  void* y;
};

class CodedConvolutions {
 public:
  // kernel: of a convolution, which outlives this.
  CodedConvolutions(const Kernel& kernel, const Library& library) : kernel_(kernel), launcher_(kernel, library) {}

  // Whether cuDNN has no kernel for the codes.
  bool is_needed() const { return kernel_.meaning.As<Convolution>().needs_own_kernel(); }

  // Whether Run enqueues a call of these sizes whose tensors are aligned. A context is current.
  bool Takes(const ConvolutionSizes& sizes) const { return Choose(sizes) < kernel_.variants.size(); }

  // Enqueues the convolution. False where no entry point fits. A context is current.
  bool Run(const ConvolutionSizes& sizes, const CodedOperands& at, Stream stream) const;

 private:
  // kernel_.variants.size() for none.
  std::size_t Choose(const ConvolutionSizes& sizes) const;

  const Kernel& kernel_;
  const Launcher launcher_;
};

}  // namespace onnxopt::cuda
