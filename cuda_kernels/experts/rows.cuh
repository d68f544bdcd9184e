// Which rows an expert has.
#pragma once

#include "experts/abi.h"

namespace onnxopt {

constexpr int kMostFewRows = 256;  // that every block looks through by itself

// An id that is none of an expert counts as the nearest one's, so that nothing outside the weights is read.
template <int kExperts>
__device__ inline int expert_of(const ExpertsParams& p, int row) {
  const long long id = p.ids[row];
  return id < 0 ? 0 : id >= kExperts ? kExperts - 1 : static_cast<int>(id);
}

struct ExpertRows {
  int expert;
  int count;  // 0 where the block has nothing to do
};

// The rows of the expert of a block's slot, in ascending order. Where there are fewer rows than experts, a slot is a
// row and belongs to the row's expert, if no earlier row has the same one; else a slot is an expert.
template <int kExperts, int kThreads>
__device__ ExpertRows find_rows(const ExpertsParams& p, int slot, int* list) {
  __shared__ int experts[kMostFewRows];
  __shared__ int found;
  for (int row = threadIdx.x; row < p.rows; row += kThreads) experts[row] = expert_of<kExperts>(p, row);
  if (threadIdx.x == 0) found = 0;
  __syncthreads();
  const bool by_row = p.rows <= kExperts;
  const int expert = by_row ? experts[slot] : slot;
  for (int row = threadIdx.x; row < p.rows; row += kThreads) {
    if (experts[row] != expert) continue;
    int before = 0, all = 0;
    for (int other = 0; other < p.rows; ++other) {
      const int same = experts[other] == expert ? 1 : 0;
      before += other < row ? same : 0;
      all += same;
    }
    list[before] = row;
    if (before == 0) found = all;
  }
  __syncthreads();
  return {expert, by_row && list[0] != slot ? 0 : found};
}

// One block: the rows of each expert beside each other, and tiles of kRows of them. The order within an expert differs
// from run to run; what is computed of a row does not depend on its place.
template <int kExperts, int kRows, int kThreads>
__device__ void route(const ExpertsParams& p) {
  __shared__ int counts[kExperts];
  __shared__ int next[kExperts];
  for (int e = threadIdx.x; e < kExperts; e += kThreads) counts[e] = 0;
  __syncthreads();
#pragma unroll 4
  for (int row = threadIdx.x; row < p.rows; row += kThreads) atomicAdd(&counts[expert_of<kExperts>(p, row)], 1);
  __syncthreads();
  for (int e = threadIdx.x; e < kExperts; e += kThreads) {
    int first = 0, tile = 0;
    for (int other = 0; other < e; ++other) {
      first += counts[other];
      tile += (counts[other] + kRows - 1) / kRows;
    }
    next[e] = first;
    for (int begin = 0; begin < counts[e]; begin += kRows, ++tile) {
      int* const entry = p.tiles + 3 * tile;
      entry[0] = e;
      entry[1] = first + begin;
      entry[2] = min(kRows, counts[e] - begin);
    }
    if (e == kExperts - 1) *p.tile_count = tile;
  }
  __syncthreads();
#pragma unroll 4
  for (int row = threadIdx.x; row < p.rows; row += kThreads) {
    p.order[atomicAdd(&next[expert_of<kExperts>(p, row)], 1)] = row;
  }
}

}  // namespace onnxopt
