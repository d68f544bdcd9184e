// What a convolution kernel computes: the C++ side of onnxopt/program/convolution.py.
#pragma once

#include <cstdint>
#include <optional>

#include "program/dtype.h"
#include "program/window.h"

namespace onnxopt {

enum class ConvolutionActivation : std::uint8_t { kNone, kRelu, kSilu, kClip, kLeakyRelu, kHardSwish, kPrelu };

// y [N, Ho, Wo, K] = activation(conv(x, w) + bias + residual), or activation(conv(x, w) + bias) + residual where the
// residual is last. Sums are float32.
//
// x: [N, H, W, C]. w: [K, R, S, C / group], or [K, C] for a 1x1 window. bias, slope: [K]. residual: as y.
// A transposed convolution is ConvTranspose: w [C, R, S, K / group], and output_padding rows and columns more in y.
struct Convolution {
  Dtype dtype = Dtype::kFloat32;  // of every input and of the output
  std::size_t inputs = 2;
  std::size_t x = 0;  // positions among the inputs; two operands may be one input
  std::size_t w = 1;
  std::optional<std::size_t> bias;
  std::optional<std::size_t> residual;
  std::optional<std::size_t> slope;  // of kPrelu alone
  bool residual_last = false;
  ConvolutionActivation activation = ConvolutionActivation::kNone;
  float activation_value = 0;  // the upper bound of kClip, the slope of kLeakyRelu
  bool transposed = false;
  std::int64_t output_padding[2] = {0, 0};  // below the strides
  std::int64_t group = 1;
  Window window;
};

constexpr std::size_t kConvolutionInputs = 5;

}  // namespace onnxopt
