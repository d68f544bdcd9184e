// A normalization over groups of channels with programs in front and behind: the C++ side of
// onnxopt/program/group_norm.py.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "group_norm/abi.h"
#include "program/pointwise.h"

namespace onnxopt {

// kElement: a tensor of x's shape; kChannel: one element a channel; kSample: one a channel of every sample; kGroup: one
// a group; kScalar: one element.
enum class GroupForm : std::uint8_t { kElement, kChannel, kSample, kGroup, kScalar };

// row, first: by sample, the input may be [N, row], of which the channels' elements from `first` on are read; 0
// elsewhere.
struct GroupRead {
  std::size_t input = 0;
  GroupForm form = GroupForm::kScalar;
  std::int64_t row = 0;
  std::int64_t first = 0;
};

constexpr std::int64_t kGroupCut = 8;  // row and first are multiples of it: vectors of such a part are aligned

// A program whose first operand is the value that passes through; `reads` are the others.
struct GroupPart {
  Program program;
  std::vector<GroupRead> reads;
};

// x: [N, H, W, channels], position among the inputs. before: its result is float32, and not rounded; x itself is normed
// where there is none. after: computes the output from what is normed, in float32.
struct GroupNorm {
  std::vector<Dtype> inputs;
  Dtype output = Dtype::kFloat32;
  std::int64_t channels = 1;
  std::int64_t groups = 1;
  float epsilon = 0;
  std::size_t x = 0;
  std::optional<GroupPart> before;
  GroupPart after;

  Dtype dtype() const { return inputs[x]; }
  std::int64_t group() const { return channels / groups; }
};

}  // namespace onnxopt
