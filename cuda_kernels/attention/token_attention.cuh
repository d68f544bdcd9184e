// One token's attention to a cache of keys and values, which grows by that token: the cache is read once and written
// once, by the kernel that computes with it.
//
// A block takes some keys of one group of one sequence, all query heads of the group with them. The last block of a
// group joins what they found, or a second kernel, where nothing counts blocks. Scores, weights and sums are float32.
#pragma once

#include "attention/cache_lanes.cuh"
#include "attention/cache_tiles.cuh"
#include "attention/join_parts.cuh"
#include "attention/token_attention_abi.h"
#include "device/early_launch.cuh"

namespace onnxopt {

// A Cache (cache.cuh) of one new token, whose row is a head of the group.
template <typename T, int kWidth, int kHeads, bool kInTurn, typename Code = T>
struct TokenCache {
  const TokenAttentionParams& p;
  const T* q;
  const Code* past_k;
  const Code* past_v;
  const T* new_k;
  const T* new_v;
  Code* present_k;
  Code* present_v;
  unsigned group;  // of its sequence
  unsigned past;
  unsigned begin;
  unsigned end;
  float scale;

  __device__ explicit TokenCache(const TokenAttentionParams& params) : p(params), past(p.past), scale(p.scale) {
    const unsigned of_all = of_all_groups();
    const unsigned sequence = of_all / p.groups;
    group = of_all % p.groups;
    const uint64_t of_group = static_cast<uint64_t>(group) * kWidth;
    const uint64_t in_cache = static_cast<uint64_t>(of_all) * past * kWidth;
    const uint64_t longer = in_cache + static_cast<uint64_t>(of_all) * kWidth;
    q = static_cast<const T*>(p.q) + sequence * p.q_stride + of_group * kHeads;
    past_k = static_cast<const Code*>(p.past_k) + in_cache;
    past_v = static_cast<const Code*>(p.past_v) + in_cache;
    new_k = static_cast<const T*>(p.k) + sequence * p.k_stride + of_group;
    new_v = static_cast<const T*>(p.v) + sequence * p.v_stride + of_group;
    present_k = static_cast<Code*>(p.present_k) + longer;
    present_v = static_cast<Code*>(p.present_v) + longer;
    begin = kInTurn ? 0 : split() * p.split_tokens;
    end = kInTurn ? past + 1 : min(begin + p.split_tokens, past + 1);
  }

  __device__ static uint64_t offset(unsigned at) { return static_cast<uint64_t>(at) * kWidth; }
  __device__ const T* query(int row) const { return q + row * kWidth; }
  __device__ unsigned held() const { return past; }
  __device__ int new_token(unsigned at) const { return at < past ? -1 : 0; }
  __device__ bool holds_new(unsigned /*first*/, unsigned last) const { return last > past; }
  __device__ const Code* past_key(unsigned at) const { return past_k + offset(at); }
  __device__ const Code* past_value(unsigned at) const { return past_v + offset(at); }
  __device__ const T* new_key(int /*token*/) const { return new_k; }
  __device__ const T* new_value(int /*token*/) const { return new_v; }
  __device__ static bool writes(int /*token*/) { return true; }
  __device__ Code* present_key(unsigned at) const { return present_k + offset(at); }
  __device__ Code* present_value(unsigned at) const { return present_v + offset(at); }
  __device__ unsigned of_all_groups() const { return blockIdx.x / p.splits; }
  __device__ unsigned splits() const { return p.splits; }
  __device__ unsigned split() const { return blockIdx.x % p.splits; }
  __device__ static unsigned part_step() { return kHeads * (kWidth + 2); }
  __device__ float* parts() const { return p.parts + static_cast<uint64_t>(of_all_groups()) * p.splits * part_step(); }
  __device__ unsigned* ended() const { return p.ended == nullptr ? nullptr : p.ended + of_all_groups(); }
  __device__ T* output(unsigned row) const {
    return static_cast<T*>(p.output) + offset(of_all_groups() * kHeads + row);
  }
};

// Attention: CacheTiles or CacheLanes. ready: called when the kernel ahead has ended, before the new tokens are read.
template <typename Attention, typename Cache, typename Ready>
__device__ inline void attend_behind(Cache& cache, const typename Attention::Scales& scales, Ready ready) {
  Attention::ask_ahead(cache);
  wait_for_previous();
  ready();
  Attention::attend(cache, scales);
}

template <typename T, int kWidth, int kHeads, int kThreads, int kStages>
__device__ inline void attend(const TokenAttentionParams& params) {
  constexpr bool kTiles = kStages > 0 && has_products<T>();
  let_next_begin();
  TokenCache<T, kWidth, kHeads, kTiles> cache(params);
  if constexpr (kTiles) {
    attend_behind<CacheTiles<T, kWidth, kHeads, kThreads, kStages, false>>(cache, {}, [] {});
  } else {
    attend_behind<CacheLanes<T, kWidth, kHeads, kThreads, false>>(cache, {}, [] {});
  }
}

// A block joins the parts of one head.
template <typename T, int kWidth, int kHeads, int kThreads>
__device__ inline void join_attended(const TokenAttentionParams& params) {
  constexpr unsigned kStep = kHeads * (kWidth + 2);
  const unsigned group = blockIdx.x / kHeads;
  let_next_begin();
  wait_for_previous();
  const float* const parts =
      params.parts + static_cast<uint64_t>(group) * params.splits * kStep + blockIdx.x % kHeads * (kWidth + 2);
  T* const output = static_cast<T*>(params.output) + static_cast<uint64_t>(blockIdx.x) * kWidth;
  JoinParts<kWidth, 1, kThreads>{parts, params.splits, kStep}.join(
      [&](unsigned, unsigned column, const Vector<float, 2>& x) {
        store_vector<T, 2>(output + column, {Narrow<T>::from(x.at[0]), Narrow<T>::from(x.at[1])});
      });
}

}  // namespace onnxopt
