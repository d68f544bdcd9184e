// One call of an attention kernel: its tensors.
#pragma once

#include "program/generated/attention.h"
#include "support/ort.h"

namespace onnxopt {

// The scales of keys or of values, and how many scales apart those of neighbouring heads and elements are.
struct CallScales {
  const void* data;
  std::int64_t head;
  std::int64_t element;
};

// One call: sequences, new tokens of each, tokens in the cache before it, operands of the new tokens and elements
// between the sequences of these. mask: nullptr where there is none; elements between its sequences, heads and tokens,
// 0 where all share them. slots: of the new tokens in the cache, or nullptr where it grows. keys: tokens of the cache
// after the call. k_scales, v_scales: of a cache of codes.
struct AttentionCall {
  std::int64_t batch;
  std::int64_t tokens;
  std::int64_t past;
  std::int64_t keys;
  const void* q;
  const void* k;
  const void* v;
  std::int64_t q_stride;
  std::int64_t k_stride;
  std::int64_t v_stride;
  const void* past_k;
  const void* past_v;
  const void* mask;
  std::int64_t mask_sequence;
  std::int64_t mask_head;
  std::int64_t mask_token;
  const std::int64_t* slots;
  CallScales k_scales;
  CallScales v_scales;
  void* output;
  void* present_k;
  void* present_v;
};

// Reads the inputs' shapes and allocates the outputs. Throws Error with all shapes where they do not fit together.
AttentionCall OpenCall(const TokenAttention& attention, OrtKernelContext* context);

// The same attention, of the number of new tokens that a call has.
TokenAttention Of(const AttentionCall& call, const TokenAttention& attention);

}  // namespace onnxopt
