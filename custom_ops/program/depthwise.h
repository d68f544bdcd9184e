// A depthwise convolution with programs in front and behind: the C++ side of onnxopt/program/depthwise.py.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "depthwise/abi.h"
#include "program/pointwise.h"
#include "program/window.h"

namespace onnxopt {

// kElement: a tensor of the result's shape; kChannel: one element a channel; kScalar: one element.
enum class DepthwiseForm : std::uint8_t { kElement, kChannel, kScalar };

struct DepthwiseRead {
  std::size_t input = 0;
  DepthwiseForm form = DepthwiseForm::kScalar;
};

// A program whose first operand is the value that passes through; `reads` are the others.
struct DepthwisePart {
  Program program;
  std::vector<DepthwiseRead> reads;
};

// A 1x1 convolution in front, of `channels` channels: weight [wide channels, channels], bias [wide channels], positions
// among the inputs. Its result is rounded to x's dtype.
struct DepthwiseExpansion {
  std::size_t weight = 0;
  std::optional<std::size_t> bias;
  std::int64_t channels = 8;
};

// x: [N, H, W, channels], weight: [R, S, 1, channels], bias: [channels], positions among the inputs. before: its result
// has x's dtype and is padded with zeros afterwards; x itself is convolved where there is none. after: computes the
// output from the float32 sum, which begins with the bias. expansion: computes what stands for x in all this from x
// [N, H, W, expansion->channels].
struct Depthwise {
  std::vector<Dtype> inputs;
  Dtype output = Dtype::kFloat32;
  std::int64_t channels = 1;
  Window window;
  std::size_t x = 0;
  std::size_t weight = 1;
  std::optional<std::size_t> bias;
  std::optional<DepthwiseExpansion> expansion;
  std::optional<DepthwisePart> before;
  DepthwisePart after;

  Dtype dtype() const { return inputs[x]; }
  std::int64_t x_channels() const { return expansion ? expansion->channels : channels; }
};

}  // namespace onnxopt
