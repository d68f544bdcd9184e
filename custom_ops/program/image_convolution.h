// A dense convolution of images with a program behind: the C++ side of onnxopt/program/image_convolution.py.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "image_convolution/abi.h"
#include "program/depthwise.h"
#include "program/window.h"

namespace onnxopt {

// x: [N, channels, H, W] with planes, else [N, H, W, channels]; weight: [filters, R, S, weight_channels], of which
// `channels` are read; bias: [filters]; positions among the inputs, all of one dtype but for what stands in front.
// before: its result has the weight's dtype and is padded with zeros afterwards; x itself is convolved where there is
// none. after: computes the output from the float32 sum, which begins with the bias.
struct ImageConvolution {
  std::vector<Dtype> inputs;
  Dtype dtype = Dtype::kFloat16;
  std::int64_t channels = 1;
  std::int64_t weight_channels = 1;
  std::int64_t filters = 8;
  bool planes = false;
  Window window;
  std::size_t x = 0;
  std::size_t weight = 1;
  std::optional<std::size_t> bias;
  std::optional<DepthwisePart> before;
  DepthwisePart after;
};

}  // namespace onnxopt
