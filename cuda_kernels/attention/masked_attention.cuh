// Some tokens' attention, under a mask, to a cache of keys and values that grows by these tokens, or has slots for
// them.
//
// A row is a head of a new token; the rows of a group share its keys. A block takes a chunk of the rows and a split of
// the keys, those of the new tokens among them, and goes through these as that of token_attention.cuh does. The blocks
// of the first chunk write the cache, of which only the new tokens where it is changed in place. The splits of a chunk
// are joined as those of a group are there. Which keys a row reads is up to the mask.
#pragma once

#include "attention/cache_registers.cuh"
#include "attention/masked_attention_abi.h"
#include "attention/token_attention.cuh"

namespace onnxopt {

constexpr int kMostNew = 16;  // tokens

// Where a row of a block lies: `row` counts the heads of all tokens of a group of a sequence.
struct MaskedRow {
  unsigned token;
  unsigned head;  // of the sequence

  __device__ MaskedRow(const MaskedAttentionParams& params, unsigned group, unsigned row)
      : token(row / params.heads), head(group * params.heads + row % params.heads) {}

  // Of the first element in q and in the output.
  __device__ uint64_t at(const MaskedAttentionParams& params, unsigned sequence, int width) const {
    const uint64_t token_of_all = static_cast<uint64_t>(sequence) * params.tokens + token;
    return (token_of_all * params.groups * params.heads + head) * width;
  }
};

// Which of the new tokens is key `at` of the longer cache; -1 for none. slots: of new tokens in the cache, where it has
// room for them; the last one counts where several have the same, as ScatterND leaves open.
template <bool kSlots>
__device__ inline int new_token_at(unsigned at, const MaskedAttentionParams& params, const int (&slots)[kMostNew]) {
  if constexpr (!kSlots) return at < params.past ? -1 : static_cast<int>(at - params.past);
  int found = -1;
#pragma unroll 1
  for (unsigned t = 0; t < params.tokens; ++t) {
    if (slots[t] == static_cast<int>(at)) found = t;
  }
  return found;
}

// A Cache (cache.cuh) under a mask. Rows behind the last of the group are those of the last, and are not stored.
template <typename T, int kWidth, int kRows, bool kSlots, bool kInTurn, typename Code = T>
struct MaskedCache {
  enum : int { kHasSlots = kSlots, kMostTokens = kMostNew };  // static members would be symbols in compiled kernels
  const MaskedAttentionParams& p;
  const int (&slots)[kMostNew];
  const Code* past_k;
  const Code* past_v;
  const T* new_k;
  const T* new_v;
  Code* present_k;
  Code* present_v;
  const T* masks;
  unsigned of_all;  // the group, of all sequences
  unsigned sequence;
  unsigned group;  // of the sequence
  unsigned chunk;
  unsigned begin;
  unsigned end;
  float scale;
  bool in_place;
  bool has_new;  // keys of the block may be new tokens

  __device__ MaskedCache(const MaskedAttentionParams& params, const int (&new_slots)[kMostNew])
      : p(params), slots(new_slots), scale(params.scale) {
    chunk = blockIdx.x % p.chunks;
    of_all = blockIdx.x / p.chunks / p.splits;
    sequence = of_all / p.groups;
    group = of_all % p.groups;
    const uint64_t fresh = sequence * p.tokens * step() + offset(group);
    past_k = static_cast<const Code*>(p.past_k) + offset(of_all) * p.past;
    past_v = static_cast<const Code*>(p.past_v) + offset(of_all) * p.past;
    new_k = static_cast<const T*>(p.k) + fresh;
    new_v = static_cast<const T*>(p.v) + fresh;
    present_k = static_cast<Code*>(p.present_k) + offset(of_all) * p.keys;
    present_v = static_cast<Code*>(p.present_v) + offset(of_all) * p.keys;
    masks = static_cast<const T*>(p.mask) + sequence * p.mask_sequence;
    begin = kInTurn ? 0 : split() * p.split_tokens;
    end = kInTurn ? p.keys : min(begin + p.split_tokens, p.keys);
    in_place = kSlots && p.past_k == p.present_k && p.past_v == p.present_v;
    has_new = kSlots || end > p.past;
  }

  // Once the slots are known.
  __device__ void look_for_new() {
    if constexpr (kSlots && !kInTurn) has_new = holds_new(begin, end);
  }

  __device__ static uint64_t offset(unsigned at) { return static_cast<uint64_t>(at) * kWidth; }
  __device__ uint64_t step() const { return offset(p.groups); }  // between new tokens
  __device__ MaskedRow row_of(int row) const {
    return MaskedRow(p, group, min(chunk * kRows + row, p.tokens * p.heads - 1));
  }
  __device__ const T* query(int row) const { return static_cast<const T*>(p.q) + row_of(row).at(p, sequence, kWidth); }
  __device__ unsigned tokens() const { return p.tokens; }
  __device__ unsigned held() const { return p.past; }
  __device__ int new_token(unsigned at) const { return has_new ? new_token_at<kSlots>(at, p, slots) : -1; }
  __device__ unsigned place_of(int token) const { return kSlots ? slots[token] : p.past + token; }
  __device__ bool holds_new(unsigned first, unsigned last) const {
    if constexpr (!kSlots) return last > p.past;
    bool found = false;
    for (unsigned t = 0; has_new && t < p.tokens; ++t) {
      const unsigned slot = slots[t];
      found = found || (slot >= first && slot < last);
    }
    return found;
  }
  __device__ const Code* past_key(unsigned at) const { return past_k + offset(at); }
  __device__ const Code* past_value(unsigned at) const { return past_v + offset(at); }
  __device__ const T* new_key(int token) const { return new_k + token * step(); }
  __device__ const T* new_value(int token) const { return new_v + token * step(); }
  __device__ bool writes(int token) const { return chunk == 0 && (!in_place || token >= 0); }
  __device__ Code* present_key(unsigned at) const { return present_k + offset(at); }
  __device__ Code* present_value(unsigned at) const { return present_v + offset(at); }
  __device__ bool same_mask() const { return p.mask_head == 0 && (p.mask_token == 0 || p.tokens == 1); }
  __device__ const T* mask_row(int row) const {
    const MaskedRow of = row_of(row);
    return masks + of.head * p.mask_head + of.token * p.mask_token;
  }
  __device__ unsigned splits() const { return p.splits; }
  __device__ unsigned split() const { return blockIdx.x / p.chunks % p.splits; }
  __device__ unsigned part_step() const { return p.chunks * kRows * (kWidth + 2); }
  __device__ float* parts() const {
    return p.parts + static_cast<uint64_t>(of_all) * p.splits * part_step() + chunk * kRows * (kWidth + 2);
  }
  __device__ unsigned* ended() const { return p.ended == nullptr ? nullptr : p.ended + of_all * p.chunks + chunk; }
  __device__ T* output(unsigned of_block) const {
    const unsigned row = chunk * kRows + of_block;
    if (row >= p.tokens * p.heads) return nullptr;
    return static_cast<T*>(p.output) + MaskedRow(p, group, row).at(p, sequence, kWidth);
  }
};

// The slots of new tokens, from the beginning of the cache.
template <bool kSlots>
__device__ inline void place_slots(const MaskedAttentionParams& params, int (&slots)[kMostNew]) {
  if constexpr (kSlots) {
    if (threadIdx.x < params.tokens) {
      const long long slot = params.slots[threadIdx.x];
      slots[threadIdx.x] = static_cast<int>(slot < 0 ? slot + params.past : slot);
    }
    __syncthreads();
  }
}

template <typename Attention, typename Cache>
__device__ inline void attend_behind_slots(const MaskedAttentionParams& params, int (&slots)[kMostNew], Cache& cache,
                                           const typename Attention::Scales& scales) {
  attend_behind<Attention>(cache, scales, [&] {
    place_slots<Cache::kHasSlots>(params, slots);
    cache.look_for_new();
  });
}

template <typename T, int kWidth, int kRows, int kThreads, int kStages, bool kSlots>
__device__ inline void attend_masked(const MaskedAttentionParams& params) {
  constexpr bool kTiles = kStages > 0 && has_products<T>();
  __shared__ int slots[kMostNew];
  let_next_begin();
  MaskedCache<T, kWidth, kRows, kSlots, kTiles> cache(params, slots);
  if constexpr (kTiles) {
    attend_behind_slots<CacheTiles<T, kWidth, kRows, kThreads, kStages, true>>(params, slots, cache, {});
  } else {
    attend_behind_slots<CacheLanes<T, kWidth, kRows, kThreads, true>>(params, slots, cache, {});
  }
}

template <typename T, int kWidth, int kRows, int kThreads, bool kSlots>
__device__ inline void attend_masked_in_registers(const MaskedAttentionParams& params) {
  if constexpr (!has_products<T>()) {
    attend_masked<T, kWidth, kRows, kThreads, 0, kSlots>(params);
  } else {
    __shared__ int slots[kMostNew];
    let_next_begin();
    using Cache = MaskedCache<T, kWidth, kRows, kSlots, true>;
    const Cache cache(params, slots);
    CacheRegisters<T, kWidth, kRows, kThreads, Cache> attention(cache);
    attention.ask_ahead();
    wait_for_previous();
    attention.attend([&] { place_slots<kSlots>(params, slots); });
  }
}

// A block joins the parts of one row.
template <typename T, int kWidth, int kRows, int kThreads>
__device__ inline void join_masked(const MaskedAttentionParams& params) {
  const unsigned chunk = blockIdx.x / kRows % params.chunks;
  const unsigned group = blockIdx.x / kRows / params.chunks;
  const unsigned row = chunk * kRows + blockIdx.x % kRows;
  let_next_begin();
  wait_for_previous();
  if (row >= params.tokens * params.heads) return;
  const unsigned step = params.chunks * kRows * (kWidth + 2);
  const float* const parts = params.parts + static_cast<uint64_t>(group) * params.splits * step + row * (kWidth + 2);
  T* const output = static_cast<T*>(params.output) +
                    MaskedRow(params, group % params.groups, row).at(params, group / params.groups, kWidth);
  JoinParts<kWidth, 1, kThreads>{parts, params.splits, step}.join(
      [&](unsigned, unsigned column, const Vector<float, 2>& x) {
        store_vector<T, 2>(output + column, {Narrow<T>::from(x.at[0]), Narrow<T>::from(x.at[1])});
      });
}

}  // namespace onnxopt
