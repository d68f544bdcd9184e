// Convolutions of few channels, of 16-bit floats.
#pragma once

#include <cstdint>

#include "cuda/launch/launcher.h"
#include "cuda/own_convolution/own_convolution.h"

namespace onnxopt::cuda {

// A convolution, or those of a block: then each step has entry points of its own.
class DenseConvolutions final : public OwnConvolution {
 public:
  DenseConvolutions(const Kernel& kernel, const Library& library) : kernel_(kernel), launcher_(kernel, library) {}

  bool Takes(const ConvolutionSizes& sizes) const override { return TakesStep(0, sizes); }
  bool Run(const ConvolutionSizes& sizes, const OwnOperands& at, Stream stream) const override;

  // As Takes and Run. at: where the operands are known.
  bool TakesStep(unsigned step, const ConvolutionSizes& sizes, const OwnOperands& at = {}) const;
  bool RunStep(unsigned step, float activation_value, const ConvolutionSizes& sizes, const OwnOperands& at,
               Stream stream) const;

 private:
  // The outputs of a tile, and how many of these a call has.
  struct Tiles {
    std::int64_t down, across;
    std::int64_t rows, in_row;

    std::int64_t per_image() const { return rows * in_row; }
  };
  Tiles TilesOf(std::size_t variant, const ConvolutionSizes& sizes) const;

  // The one with least to do for a multiprocessor, inputs and outputs; kernel_.variants.size() for none.
  std::size_t Choose(unsigned step, const ConvolutionSizes& sizes) const;

  const Kernel& kernel_;
  const Launcher launcher_;
};

}  // namespace onnxopt::cuda
