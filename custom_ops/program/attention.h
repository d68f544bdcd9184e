// New tokens' attention to a cache that grows by them: the C++ side of onnxopt/program/attention.py.
#pragma once

#include <cstdint>
#include <optional>

#include "program/dtype.h"

namespace onnxopt {

// What has a scale of its own; a channel is an element of one head.
enum class ScalePer : std::uint8_t { kTensor, kHead, kElement, kChannel };

// A cache of 8-bit codes: k_scale and v_scale are positions among the inputs. by_reciprocal: new tokens are multiplied
// by 1 / scale, or by 0 where it is 0, instead of divided.
struct CacheCodes {
  Dtype dtype = Dtype::kInt8;
  Dtype scales = Dtype::kFloat32;
  std::size_t k_scale = 0;
  std::size_t v_scale = 0;
  ScalePer k_per = ScalePer::kTensor;
  ScalePer v_per = ScalePer::kTensor;
  bool by_reciprocal = false;
};

// heads of queries share keys and values in groups. Positions among the inputs; k and v are missing where q holds the
// three beside each other. Without a mask there is one new token, which reads every key. Outputs: the attention, keys
// with the new ones, values with the new ones. With slots, the new ones take places of the cache; else it grows.
struct TokenAttention {
  Dtype dtype = Dtype::kFloat16;
  std::size_t inputs = 3;
  std::int64_t heads = 1;
  std::int64_t groups = 1;
  std::int64_t width = 1;  // of a head
  float scale = 1;
  std::size_t q = 0;
  std::optional<std::size_t> k;
  std::optional<std::size_t> v;
  std::size_t past_k = 1;
  std::size_t past_v = 2;
  std::int64_t tokens = 1;  // new ones of a sequence; 0 for as many as q has in a call
  std::int64_t rows = 1;    // heads of tokens that a block takes under a mask
  std::optional<std::size_t> mask;
  std::optional<std::size_t> slots;
  std::optional<CacheCodes> codes;

  Dtype Cached() const { return codes ? codes->dtype : dtype; }
};

constexpr std::size_t kAttentionInputs = 9;  // at most

}  // namespace onnxopt
