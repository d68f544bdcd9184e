// One call of an attention of many queries: its tensors.
#pragma once

#include "program/generated/flash_attention.h"
#include "support/ort.h"

namespace onnxopt {

// Where heads lie, in elements from `data` on.
struct HeadsPlace {
  const void* data;
  std::int64_t of_batch;
  std::int64_t of_head;
  std::int64_t of_token;
};

// bias: null where there is none; its strides are 0 where a dim is 1, and it is the same again every `bias_period`
// sequences. sinks: of each head, or null. y: null where the result has no elements.
struct FlashAttentionCall {
  std::int64_t batch;
  std::int64_t queries;
  std::int64_t keys;
  HeadsPlace q;
  HeadsPlace k;
  HeadsPlace v;
  const void* bias;
  std::int64_t bias_period;
  std::int64_t bias_batch;
  std::int64_t bias_head;
  std::int64_t bias_query;
  const void* sinks;
  void* y;
};

// Reads the inputs' shapes and allocates the output. Throws Error with the shapes where they do not fit together.
FlashAttentionCall OpenCall(const FlashAttention& attention, OrtKernelContext* context);

}  // namespace onnxopt
