// What the host hands to the kernels of one token's attention: plain data for NVRTC and g++.
#pragma once

#include "attention/cache_codes_abi.h"

namespace onnxopt {

constexpr unsigned kMaxSplits = 256;  // blocks that share a group's tokens, at most

// Heads of queries share keys and values in groups. q, k and v are the new token's, contiguous in each sequence; the
// sequences lie *_stride elements apart. past_*: [batch, groups, past, width]; present_*: the same with one token more.
// output: [batch, heads, width]. parts: for every group of every sequence, split and head, the weighted sum of its
// values, then the largest score and the sum of weights; not read where there is one split. scales: of a cache of
// codes. ended: a counter for every group of every sequence, which is 0 and is left 0; the last split of a group joins
// their parts then. Where it is null, another launch does.
struct TokenAttentionParams {
  const void* q;
  const void* k;
  const void* v;
  const void* past_k;
  const void* past_v;
  void* present_k;
  void* present_v;
  void* output;
  float* parts;
  unsigned long long q_stride;
  unsigned long long k_stride;
  unsigned long long v_stride;
  unsigned int groups;
  unsigned int past;
  unsigned int splits;        // blocks that share a group's tokens
  unsigned int split_tokens;  // of each but the last, which may have fewer
  float scale;
  CacheScales scales;
  unsigned int* ended;
};

}  // namespace onnxopt
