// What the host hands to attention of many queries: plain data for NVRTC and g++.
#pragma once

namespace onnxopt {

// Where element 0 of a head lies for a token: `data` + batch * of_batch + head * of_head + token * of_token elements.
// Elements of a head lie beside each other.
struct HeadsOf {
  const void* data;
  unsigned long long of_batch;
  unsigned long long of_head;
  unsigned int of_token;
};

// bias: added to the scores, or null; rows of keys, bias_* elements apart, the same again every bias_period sequences.
// y: [batch, queries, heads, value width]. A block takes some queries of one head: `tiles` blocks take all of them. It
// does so for every `step`-th sequence of `batch`. group: query heads that share keys and values. scale: of scores,
// times log2(e), above 0. behind: keys less queries, by which causal attention sees later keys.
struct FlashAttentionParams {
  HeadsOf q;
  HeadsOf k;
  HeadsOf v;
  const void* bias;
  void* y;
  unsigned long long bias_batch;
  unsigned long long bias_head;
  unsigned int bias_query;
  unsigned int bias_period;
  unsigned int batch;
  unsigned int step;
  unsigned int heads;
  unsigned int group;
  unsigned int queries;
  unsigned int keys;
  unsigned int tiles;
  int behind;
  float scale;
};

}  // namespace onnxopt
