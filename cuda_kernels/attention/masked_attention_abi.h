// What the host hands to the kernels of several tokens' attention under a mask: plain data for NVRTC and g++.
#pragma once

#include "attention/cache_codes_abi.h"

namespace onnxopt {

// `heads` of queries share keys and values in each of `groups`. q: [batch, tokens, groups * heads, width]; k and v:
// [batch, tokens, groups, width], of the new tokens. past_*: [batch, groups, past, width]; present_*: the same with the
// new tokens behind, or, where there are `slots`, in these places of the cache instead of what is there: [tokens], from
// -past to past - 1. keys: tokens of present_*. mask: [batch, groups * heads, tokens, keys], added to the scores;
// mask_* are the elements between its sequences, heads and tokens, 0 where all have the same. output: as q. parts: for
// every group of every sequence, split and chunk of rows, and every row of the chunk, the weighted sum of its values,
// then the largest score and the sum of weights. A row is a head of a token. scales and ended: as of
// TokenAttentionParams, of a counter for every group of every sequence and chunk.
struct MaskedAttentionParams {
  const void* q;
  const void* k;
  const void* v;
  const void* past_k;
  const void* past_v;
  const void* mask;
  const long long* slots;
  void* present_k;
  void* present_v;
  void* output;
  float* parts;
  unsigned long long mask_sequence;
  unsigned long long mask_head;
  unsigned long long mask_token;
  unsigned int tokens;
  unsigned int heads;  // of a group
  unsigned int groups;
  unsigned int past;
  unsigned int keys;
  unsigned int chunks;        // blocks that share a group's rows
  unsigned int splits;        // blocks that share a group's keys
  unsigned int split_tokens;  // of each but the last, which may have fewer
  float scale;
  CacheScales scales;
  unsigned int* ended;
};

}  // namespace onnxopt
