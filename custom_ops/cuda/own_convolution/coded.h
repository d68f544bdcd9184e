// Convolutions of 8-bit codes.
#pragma once

#include "cuda/launch/launcher.h"
#include "cuda/own_convolution/own_convolution.h"

namespace onnxopt::cuda {

class CodedConvolutions final : public OwnConvolution {
 public:
  CodedConvolutions(const Kernel& kernel, const Library& library) : kernel_(kernel), launcher_(kernel, library) {}

  bool Takes(const ConvolutionSizes& sizes) const override { return Choose(sizes) < kernel_.variants.size(); }
  bool Run(const ConvolutionSizes& sizes, const OwnOperands& at, Stream stream) const override;

 private:
  // kernel_.variants.size() for none.
  std::size_t Choose(const ConvolutionSizes& sizes) const;

  const Kernel& kernel_;
  const Launcher launcher_;
};

}  // namespace onnxopt::cuda
