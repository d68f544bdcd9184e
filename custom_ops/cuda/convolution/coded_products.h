// 1x1 convolutions of codes by entry points of ours.
#pragma once

#include "cuda/convolution/plan.h"
#include "cuda/launch/launcher.h"
#include "kernel_file/kernel.h"

namespace onnxopt::cuda {

class CodedProducts {
 public:
  // kernel: of a convolution, which outlives this.
  CodedProducts(const Kernel& kernel, const Library& library) : kernel_(kernel), launcher_(kernel, library) {}

  // Whether Run enqueues a call of these sizes whose tensors are aligned. A context is current.
  bool Takes(const ConvolutionSizes& sizes) const { return Choose(sizes) < kernel_.variants.size(); }

  // Enqueues the convolution. False where no entry point fits. A context is current.
  bool Run(const ConvolutionSizes& sizes, const ConvolutionPointers& at, Stream stream) const;

 private:
  // kernel_.variants.size() for none.
  std::size_t Choose(const ConvolutionSizes& sizes) const;

  const Kernel& kernel_;
  const Launcher launcher_;
};

}  // namespace onnxopt::cuda
