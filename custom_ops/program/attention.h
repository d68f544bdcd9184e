// One new token's attention to a cache that grows by it: the C++ side of onnxopt/token_attention.py.
#pragma once

#include <cstdint>
#include <optional>

#include "program/dtype.h"

namespace onnxopt {

// heads of queries share keys and values in groups. Positions among the inputs; k and v are missing where q holds the
// three beside each other. Outputs: the attention, keys with the new one, values with the new one.
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
};

constexpr std::size_t kAttentionInputs = 5;

}  // namespace onnxopt
