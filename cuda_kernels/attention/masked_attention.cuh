// Some tokens' attention, under a mask, to a cache of keys and values that grows by these tokens, or has slots for
// them.
//
// A row is a head of a new token; the rows of a group share its keys. A block takes a chunk of the rows and a split of
// the keys, those of the new tokens among them, and goes through these as token_attention.cuh does. The blocks of the
// first chunk write the cache. A second kernel joins the splits of each row. Which keys a row reads is up to the mask.
#pragma once

#include "attention/masked_attention_abi.h"
#include "attention/token_attention.cuh"

namespace onnxopt {

// Finite masks of less than this hide a key. As sums they would all be below kNoScore, and a row that hides all of its
// keys so, as those of padding do, would be not a number instead of a mean.
constexpr float kLeastMask = -1e29f;

constexpr int kMostNew = 16;  // tokens

// Where a row of a block lies: `row` counts the heads of all tokens of a group.
struct MaskedRow {
  unsigned token;
  unsigned head;  // of the sequence

  __device__ MaskedRow(const MaskedAttentionParams& params, unsigned group, unsigned row)
      : token(row / params.heads), head(group % params.groups * params.heads + row % params.heads) {}

  // Of the first element in q and in the output.
  __device__ uint64_t at(const MaskedAttentionParams& params, unsigned group, int width) const {
    const uint64_t token_of_all = static_cast<uint64_t>(group / params.groups) * params.tokens + token;
    return (token_of_all * params.groups * params.heads + head) * width;
  }
};

template <typename T>
__device__ inline float mask_at(const T* row, unsigned key) {
  const float mask = widen(row[key]);
  return mask < kLeastMask && mask >= -3.4028235e38f ? kLeastMask : mask;
}

// Adds kCount keys to what each row attends to. Every lane of the warp takes part; keys that are not valid count
// nothing. first: of the keys, which are `step` apart.
template <typename T, typename M, int kVector, int kLanes, int kRows, int kCount>
__device__ inline void attend_masked_to(const float (&query)[kRows][kVector], const Vector<T, kVector> (&keys)[kCount],
                                        const Vector<T, kVector> (&values)[kCount], const bool (&valid)[kCount],
                                        const M* const (&mask)[kRows], unsigned first, unsigned step,
                                        Attended<kVector> (&attended)[kRows]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float score[kCount];
    float top = attended[r].top;
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      score[u] = 0.0f;
#pragma unroll
      for (int j = 0; j < kVector; ++j) score[u] += query[r][j] * widen(keys[u].at[j]);
#pragma unroll
      for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) score[u] += shuffle_xor(score[u], lanes);
      if (valid[u]) score[u] += mask_at(mask[r], first + u * step);
      if (valid[u] && !(score[u] <= top)) top = score[u];  // NaN shows
    }
    attended[r].scale_to(top);
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      const float weight = valid[u] ? exp(score[u] - top) : 0.0f;
      attended[r].sum += weight;
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        if (valid[u]) attended[r].value[j] += weight * widen(values[u].at[j]);
      }
    }
  }
}

// Which of the new tokens is key `at` of the longer cache; -1 for none. slots: of new tokens in the cache, where it has
// room for them; the last one counts where several have the same, as ScatterND leaves open.
template <bool kSlots>
__device__ inline int new_token_at(unsigned at, const MaskedAttentionParams& params, const int (&slots)[kMostNew]) {
  if constexpr (!kSlots) return at < params.past ? -1 : static_cast<int>(at - params.past);
  int found = -1;
  for (unsigned t = 0; t < params.tokens; ++t) {
    if (slots[t] == static_cast<int>(at)) found = t;
  }
  return found;
}

// slots: in shared memory, for those of the new tokens.
template <typename T, int kWidth, int kRows, int kUnroll, int kThreads, bool kSlots, typename Cache>
__device__ inline void attend_masked_in(const MaskedAttentionParams& params, const typename Cache::Scales& scales,
                                        int (&slots)[kMostNew]) {
  constexpr int kVector = 16 / sizeof(T);
  constexpr int kLoads = kUnroll * Cache::kParts;  // keys in flight
  constexpr int kLanes = kWidth / kVector;         // of a key
  constexpr int kKeys = kThreads / kLanes;         // at once
  static_assert(kLanes <= 32 && (kLanes & (kLanes - 1)) == 0, "a key's lanes are a part of a warp");
  using Code = typename Cache::Code;
  using Words = typename Cache::Words;
  const unsigned chunk = blockIdx.x % params.chunks;
  const unsigned split = blockIdx.x / params.chunks % params.splits;
  const unsigned group = blockIdx.x / params.chunks / params.splits;  // of all sequences
  const unsigned sequence = group / params.groups;
  const unsigned rows = params.tokens * params.heads;
  const unsigned lane = threadIdx.x % kLanes;
  const unsigned key = threadIdx.x / kLanes;
  const unsigned begin = split * params.split_tokens;
  const unsigned end = min(begin + params.split_tokens, params.keys);
  const uint64_t past = static_cast<uint64_t>(group) * params.past * kWidth + lane * kVector;
  const uint64_t present = static_cast<uint64_t>(group) * params.keys * kWidth + lane * kVector;
  const uint64_t step = static_cast<uint64_t>(params.groups) * kWidth;  // between new tokens
  const uint64_t fresh = sequence * params.tokens * step + group % params.groups * kWidth + lane * kVector;
  const Code* const past_k = static_cast<const Code*>(params.past_k) + past;
  const Code* const past_v = static_cast<const Code*>(params.past_v) + past;
  const T* const new_k = static_cast<const T*>(params.k) + fresh;
  const T* const new_v = static_cast<const T*>(params.v) + fresh;
  Code* const present_k = static_cast<Code*>(params.present_k) + present;
  Code* const present_v = static_cast<Code*>(params.present_v) + present;

  let_next_begin();
  wait_for_previous();
  if constexpr (kSlots) {
    if (threadIdx.x < params.tokens) {
      const long long slot = params.slots[threadIdx.x];
      slots[threadIdx.x] = static_cast<int>(slot < 0 ? slot + params.past : slot);
    }
    __syncthreads();
  }
  const Cache cache(scales, group % params.groups, lane * kVector);
  float query[kRows][kVector];
  const T* mask[kRows];
  Attended<kVector> attended[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const MaskedRow row(params, group, min(chunk * kRows + r, rows - 1));  // rows behind the last are not stored
    const auto words =
        load_vector<T, kVector>(static_cast<const T*>(params.q) + row.at(params, group, kWidth) + lane * kVector);
#pragma unroll
    for (int j = 0; j < kVector; ++j) query[r][j] = cache.of_query(params.scale * widen(words.at[j]), j);
    mask[r] = static_cast<const T*>(params.mask) + sequence * params.mask_sequence + row.head * params.mask_head +
              row.token * params.mask_token;
  }
  for (unsigned first = begin; first < end; first += kKeys * kLoads) {
    Words keys[kLoads] = {};
    Words values[kLoads] = {};
    bool valid[kLoads];
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const unsigned at = first + u * kKeys + key;
      valid[u] = at < end;
      if (!valid[u]) continue;
      const int token = new_token_at<kSlots>(at, params, slots);
      if constexpr (Cache::kSame) {
        const uint64_t offset = token < 0 ? static_cast<uint64_t>(at) * kWidth : token * step;
        keys[u] = load_vector<T, kVector>((token < 0 ? past_k : new_k) + offset);
        values[u] = load_vector<T, kVector>((token < 0 ? past_v : new_v) + offset);
      } else if (token < 0) {
        keys[u] = load_vector<Code, kVector>(past_k + static_cast<uint64_t>(at) * kWidth);
        values[u] = load_vector<Code, kVector>(past_v + static_cast<uint64_t>(at) * kWidth);
      } else {
        keys[u] = cache.key(load_vector<T, kVector>(new_k + token * step));
        values[u] = cache.value(load_vector<T, kVector>(new_v + token * step));
      }
    }
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const unsigned at = first + u * kKeys + key;
      if (!valid[u] || chunk != 0) continue;
      store_vector<Code, kVector>(present_k + static_cast<uint64_t>(at) * kWidth, keys[u]);
      store_vector<Code, kVector>(present_v + static_cast<uint64_t>(at) * kWidth, values[u]);
    }
    if constexpr (Cache::kSame) {
      attend_masked_to<T, T, kVector, kLanes>(query, keys, values, valid, mask, first + key, kKeys, attended);
    } else {
#pragma unroll
      for (int part = 0; part < kLoads; part += kUnroll) {
        const typename Cache::template Numbers<kUnroll> of(keys, values, valid, part);
        const unsigned at = first + part * kKeys + key;
        attend_masked_to<float, T, kVector, kLanes>(query, of.keys, of.values, of.valid, mask, at, kKeys, attended);
      }
    }
  }
  cache.scale(attended);
  store_attended<kWidth, kLanes, kThreads>(attended, params.parts);
}

template <typename T, int kWidth, int kRows, int kUnroll, int kThreads, bool kSlots>
__device__ inline void attend_masked(const MaskedAttentionParams& params) {
  __shared__ int slots[kMostNew];
  attend_masked_in<T, kWidth, kRows, kUnroll, kThreads, kSlots, SameCache<T>>(params, {}, slots);
}

// A block joins the parts of one row. Every thread weighs the splits itself: there are few, and their numbers are the
// same for all.
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
  T* const output = static_cast<T*>(params.output) + MaskedRow(params, group, row).at(params, group, kWidth);
  float top = kNoScore;
#pragma unroll 8
  for (unsigned s = 0; s < params.splits; ++s) {
    const float other = parts[s * step + kWidth];
    top = other > top ? other : top;
  }
  for (unsigned i = threadIdx.x; i < kWidth; i += kThreads) {
    float sum = 0.0f;
    float value = 0.0f;
#pragma unroll 8
    for (unsigned s = 0; s < params.splits; ++s) {
      const float factor = exp(parts[s * step + kWidth] - top);
      sum += factor * parts[s * step + kWidth + 1];
      value += factor * parts[s * step + i];
    }
    output[i] = Narrow<T>::from(value / sum);
  }
}

}  // namespace onnxopt
