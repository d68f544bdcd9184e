// What the host hands to a mixture of experts: plain data for NVRTC and g++.
#pragma once

namespace onnxopt {

// A row is one choice of one token: row = token * chosen + choice, so there are `rows` = tokens * chosen.
//
// x: [tokens, columns]. ids: [rows], the experts; factors: [rows], what the experts' results are multiplied by.
// weight[0]: [experts, columns, hidden], or twice as wide with a gate; weight[1]: [experts, hidden, columns].
// bias: of each product, [experts, its columns], or null. splits: blocks that share the depth of each product. between:
// [rows, hidden], scratch of the storage dtype. sums: float32 scratch, [splits[0], rows, hidden or 2 hidden] where
// splits[0] is not 1, and later [splits[1], rows, columns]. y: [tokens, columns]. Only where a launch finds the rows of
// all experts ahead: order [rows], the rows by expert; tiles: {expert, first in order, rows} of each tile, of which
// there may be `max_tiles`, and their number in tile_count. Only where a library multiplies: sorted [rows, columns], x
// in that order, later the second product; products [rows, hidden or 2 hidden], the first one; places [rows], where
// each row lies in the order, as the rows of `between` do then.
struct ExpertsParams {
  const void* x;
  const long long* ids;
  const void* factors;
  const void* weight[2];
  const void* bias[2];
  void* between;
  float* sums;
  void* y;
  int* order;
  int* tiles;
  int* tile_count;
  void* sorted;
  void* products;
  int* places;
  int splits[2];
  int max_tiles;
  int rows;
};

}  // namespace onnxopt
