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

// What becomes of a result y, rounded to the inputs' dtype: y / step, rounded half to even, from low to high. 8-bit
// floats have no limits but their own.
struct AttentionCodes {
  float step = 1;
  float low = 0;
  float high = 0;
};

// softmax(cap(scale q k^T) + bias) v, where cap(x) is cap tanh(x / cap), or x where cap is 0. bias: position of
// [period, heads or 1, queries or 1, keys], the same again every `period` sequences. sinks: position of [heads], scores
// beside those of the keys, for no value. The result is [batch, queries, heads * values]. Several neighbouring heads of
// q share one of k and v, of which there are `groups`. The last query stands at the last key, each query before it at
// one key less; a query sees `before` keys in front of its own and `after` behind it, or all.
struct FlashAttention {
  Dtype dtype = Dtype::kFloat16;   // of the inputs
  Dtype output = Dtype::kFloat16;  // the same where there are no codes
  std::size_t inputs = 1;
  std::int64_t heads = 1;
  std::int64_t groups = 1;
  std::int64_t width = 1;   // elements of a head of q and k
  std::int64_t values = 1;  // of v
  float scale = 1;
  float cap = 0;
  std::optional<std::int64_t> before;
  std::optional<std::int64_t> after;
  Heads q;
  Heads k;
  Heads v;
  std::optional<std::size_t> bias;
  std::optional<std::size_t> sinks;
  std::optional<AttentionCodes> codes;
};

constexpr std::size_t kFlashAttentionInputs = 5;

}  // namespace onnxopt
