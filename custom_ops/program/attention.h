// One new token's attention to a cache that grows by it: the C++ side of onnxopt/token_attention.py.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "program/dtype.h"
#include "program/shape.h"
#include "support/ort.h"

namespace onnxopt {

class JsonReader;

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

// One call: sequences, tokens in the cache before it, operands of the new token and elements between its sequences.
struct AttentionCall {
  std::int64_t batch;
  std::int64_t past;
  const void* q;
  const void* k;
  const void* v;
  std::int64_t q_stride;
  std::int64_t k_stride;
  std::int64_t v_stride;
  const void* past_k;
  const void* past_v;
  void* output;
  void* present_k;
  void* present_v;
};

// The fields of an attention kernel. Throws Error naming the place of what is not as token_attention.py writes it.
TokenAttention ReadTokenAttention(const JsonReader& json, const std::vector<Dtype>& inputs,
                                  const std::vector<Dtype>& outputs);

// Reads the inputs' shapes and allocates the outputs. Throws Error with all shapes where they do not fit together.
AttentionCall OpenCall(const TokenAttention& attention, OrtKernelContext* context);

// Sets the outputs' dtype and shape where the ranks are known.
void InferShapes(const TokenAttention& attention, OrtShapeInferContext* context);

}  // namespace onnxopt
