// Attention of many queries: the C++ side of onnxopt/program/flash_attention.py.
#pragma once

#include <cstdint>
#include <optional>

#include "program/dtype.h"

namespace onnxopt {

// Where heads lie: in an input [batch, tokens, row], head h of a token from element first + h * step on; with row = 0,
// in one [batch, heads, tokens, width].
struct Heads {
  std::size_t input = 0;
  std::int64_t row = 0;
  std::int64_t first = 0;
  std::int64_t step = 0;
};

// softmax(scale q k^T + bias) v. bias: position of [period, heads or 1, queries, keys], the same again every `period`
// sequences. The result is [batch,
// queries, heads * values]. Several neighbouring heads of q share one of k and v, of which there are `groups`.
struct FlashAttention {
  Dtype dtype = Dtype::kFloat16;
  std::size_t inputs = 1;
  std::int64_t heads = 1;
  std::int64_t groups = 1;
  std::int64_t width = 1;   // elements of a head of q and k
  std::int64_t values = 1;  // of v
  float scale = 1;
  bool causal = false;
  Heads q;
  Heads k;
  Heads v;
  std::optional<std::size_t> bias;
};

constexpr std::size_t kFlashAttentionInputs = 4;

}  // namespace onnxopt
