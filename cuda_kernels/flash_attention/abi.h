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

// bias: added to the scores, or null; rows of keys, bias_* elements apart (0 where rows are the same), the same again
// every bias_period sequences. sinks: of each head, a score that no key has, or null. y: [batch, queries, heads, value
// width]. A block takes some queries of one head: `tiles` blocks take all of them. It does so for every `step`-th
// sequence of `batch`. group: query heads that share keys and values. Query s stands at key s + behind, the last one at
// the last key; local attention sees `before` keys in front of that and `after` ones behind it. scale: of scores, above
// 0, times log2(e), or over the cap where there is one. cap: of scores, times log2(e).
struct FlashAttentionParams {
  HeadsOf q;
  HeadsOf k;
  HeadsOf v;
  const void* bias;
  const void* sinks;
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
  int before;
  int after;
  float scale;
  float cap;
};

}  // namespace onnxopt
