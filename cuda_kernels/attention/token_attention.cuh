// One token's attention to a cache of keys and values, which grows by that token: the cache is read once and written
// once, by the kernel that computes with it.
//
// A block takes some tokens of one group of one sequence, all query heads of the group with them. kWidth elements of a
// key are spread over neighbouring lanes, 16 bytes each; kUnroll tokens are in flight. Every group of lanes keeps its
// own maximum, sum and weighted values, which are joined over the block, and over all blocks by a second kernel.
// Scores, weights and sums are float32.
#pragma once

#include "attention/token_attention_abi.h"
#include "device/dtypes.cuh"
#include "device/early_launch.cuh"
#include "device/reduce.cuh"
#include "device/scalar.cuh"
#include "device/vector.cuh"

namespace onnxopt {

constexpr float kNoScore = -1e30f;  // below any score: its weight beside one is 0, and beside itself not NaN

// What some tokens contribute to one head: values weighted by exp(score - top), and the sum of these weights.
template <int kValues>
struct Attended {
  float top = kNoScore;
  float sum = 0.0f;
  float value[kValues] = {};

  __device__ void scale_to(float new_top) {
    const float factor = exp(top - new_top);
    top = new_top;
    sum *= factor;
#pragma unroll
    for (int j = 0; j < kValues; ++j) value[j] *= factor;
  }
};

// A cache that holds keys and values as new tokens are; cache_codes.cuh has one of codes.
template <typename T>
struct SameCache {
  using Code = T;
  struct Scales {};
  enum : int {  // constants, of which static members would be symbols in the compiled kernels
    kVector = 16 / sizeof(T),
    kSame = 1,   // nothing is converted
    kParts = 1,  // in which the keys under way are attended to
  };
  using Words = Vector<T, kVector>;

  __device__ SameCache(const Scales&, unsigned, unsigned) {}
  __device__ float of_query(float x, int) const { return x; }
  template <int kRows>
  __device__ void scale(Attended<kVector> (&)[kRows]) const {}
  __device__ Words key(const Words& x) const { return x; }
  __device__ Words value(const Words& x) const { return x; }
};

// Adds kCount tokens to what each head attends to. Every lane of the warp takes part; tokens that are not valid count
// nothing.
template <typename T, int kVector, int kLanes, int kHeads, int kCount>
__device__ inline void attend_to(const float (&query)[kHeads][kVector], const Vector<T, kVector> (&keys)[kCount],
                                 const Vector<T, kVector> (&values)[kCount], const bool (&valid)[kCount],
                                 Attended<kVector> (&attended)[kHeads]) {
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    float score[kCount];
    float top = attended[h].top;
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      score[u] = 0.0f;
#pragma unroll
      for (int j = 0; j < kVector; ++j) score[u] += query[h][j] * widen(keys[u].at[j]);
#pragma unroll
      for (int mask = kLanes / 2; mask > 0; mask /= 2) score[u] += shuffle_xor(score[u], mask);
      if (valid[u] && !(score[u] <= top)) top = score[u];  // NaN shows
    }
    attended[h].scale_to(top);
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      const float weight = valid[u] ? exp(score[u] - top) : 0.0f;
      attended[h].sum += weight;
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        if (valid[u]) attended[h].value[j] += weight * widen(values[u].at[j]);
      }
    }
  }
}

// Joins what the lanes of a block found, and writes it to the block's place in `all_parts`.
template <int kWidth, int kLanes, int kThreads, int kVector, int kHeads>
__device__ inline void store_attended(Attended<kVector> (&attended)[kHeads], float* all_parts) {
  constexpr int kWarps = kThreads / 32;
  __shared__ float shared_value[kWarps][kHeads][kWidth];
  __shared__ float shared_top[kWarps][kHeads];
  __shared__ float shared_sum[kWarps][kHeads];
  const unsigned warp = threadIdx.x / 32;
  const unsigned lane = threadIdx.x % kLanes;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    Attended<kVector>& mine = attended[h];
#pragma unroll
    for (int mask = kLanes; mask < 32; mask *= 2) {
      const float other_top = shuffle_xor(mine.top, mask);
      mine.scale_to(other_top > mine.top ? other_top : mine.top);
      mine.sum += shuffle_xor(mine.sum, mask);
#pragma unroll
      for (int j = 0; j < kVector; ++j) mine.value[j] += shuffle_xor(mine.value[j], mask);
    }
    if (threadIdx.x % 32 < kLanes) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) shared_value[warp][h][lane * kVector + j] = mine.value[j];
      shared_top[warp][h] = mine.top;
      shared_sum[warp][h] = mine.sum;
    }
  }
  __syncthreads();
  float* const parts = all_parts + static_cast<uint64_t>(blockIdx.x) * kHeads * (kWidth + 2);
  for (unsigned i = threadIdx.x; i < kHeads * kWidth; i += kThreads) {
    const unsigned h = i / kWidth;
    float top = kNoScore;
    for (int w = 0; w < kWarps; ++w) top = shared_top[w][h] > top ? shared_top[w][h] : top;
    float sum = 0.0f;
    float value = 0.0f;
    for (int w = 0; w < kWarps; ++w) {
      const float factor = exp(shared_top[w][h] - top);
      sum += factor * shared_sum[w][h];
      value += factor * shared_value[w][h][i % kWidth];
    }
    float* const part = parts + h * (kWidth + 2);
    part[i % kWidth] = value;
    if (i % kWidth == 0) {
      part[kWidth] = top;
      part[kWidth + 1] = sum;
    }
  }
}

template <typename T, int kWidth, int kHeads, int kUnroll, int kThreads, typename Cache>
__device__ inline void attend_in(const TokenAttentionParams& params, const typename Cache::Scales& scales) {
  constexpr int kVector = 16 / sizeof(T);
  constexpr int kLoads = kUnroll * Cache::kParts;  // tokens in flight
  constexpr int kLanes = kWidth / kVector;         // of a token
  constexpr int kTokens = kThreads / kLanes;       // at once
  static_assert(kLanes <= 32 && (kLanes & (kLanes - 1)) == 0, "a token's lanes are a part of a warp");
  using Code = typename Cache::Code;
  using Words = typename Cache::Words;
  const unsigned split = blockIdx.x % params.splits;
  const unsigned group = blockIdx.x / params.splits;  // of all sequences
  const unsigned sequence = group / params.groups;
  const unsigned of_sequence = group % params.groups;
  const unsigned lane = threadIdx.x % kLanes;
  const unsigned token = threadIdx.x / kLanes;
  const unsigned begin = split * params.split_tokens;
  const unsigned end = min(begin + params.split_tokens, params.past);
  const uint64_t past = static_cast<uint64_t>(group) * params.past * kWidth + lane * kVector;
  const uint64_t present = past + static_cast<uint64_t>(group) * kWidth;
  const Code* const past_k = static_cast<const Code*>(params.past_k) + past;
  const Code* const past_v = static_cast<const Code*>(params.past_v) + past;
  Code* const present_k = static_cast<Code*>(params.present_k) + present;
  Code* const present_v = static_cast<Code*>(params.present_v) + present;
  const uint64_t in_new = static_cast<uint64_t>(of_sequence) * kWidth + lane * kVector;

  let_next_begin();
  wait_for_previous();
  const Cache cache(scales, of_sequence, lane * kVector);
  float query[kHeads][kVector];
  Attended<kVector> attended[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const T* const q = static_cast<const T*>(params.q) + sequence * params.q_stride +
                       (static_cast<uint64_t>(of_sequence) * kHeads + h) * kWidth + lane * kVector;
    const auto words = load_vector<T, kVector>(q);
#pragma unroll
    for (int j = 0; j < kVector; ++j) query[h][j] = cache.of_query(params.scale * widen(words.at[j]), j);
  }
  for (unsigned first = begin; first < end; first += kTokens * kLoads) {
    Words keys[kLoads] = {};
    Words values[kLoads] = {};
    bool valid[kLoads];
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const unsigned at = first + u * kTokens + token;
      valid[u] = at < end;
      if (!valid[u]) continue;
      keys[u] = load_once<Code, kVector>(past_k + static_cast<uint64_t>(at) * kWidth);
      values[u] = load_once<Code, kVector>(past_v + static_cast<uint64_t>(at) * kWidth);
    }
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const unsigned at = first + u * kTokens + token;
      if (!valid[u]) continue;
      store_vector<Code, kVector>(present_k + static_cast<uint64_t>(at) * kWidth, keys[u]);
      store_vector<Code, kVector>(present_v + static_cast<uint64_t>(at) * kWidth, values[u]);
    }
    if constexpr (Cache::kSame) {
      attend_to<T, kVector, kLanes>(query, keys, values, valid, attended);
    } else {
#pragma unroll
      for (int part = 0; part < kLoads; part += kUnroll) {
        const typename Cache::template Numbers<kUnroll> of(keys, values, valid, part);
        attend_to<float, kVector, kLanes>(query, of.keys, of.values, of.valid, attended);
      }
    }
  }
  if (split == params.splits - 1) {  // the new token
    const auto key =
        cache.key(load_vector<T, kVector>(static_cast<const T*>(params.k) + sequence * params.k_stride + in_new));
    const auto value =
        cache.value(load_vector<T, kVector>(static_cast<const T*>(params.v) + sequence * params.v_stride + in_new));
    const bool valid = token == 0;
    if (valid) {
      store_vector<Code, kVector>(present_k + static_cast<uint64_t>(params.past) * kWidth, key);
      store_vector<Code, kVector>(present_v + static_cast<uint64_t>(params.past) * kWidth, value);
    }
    if constexpr (Cache::kSame) {
      attend_to<T, kVector, kLanes>(query, {key}, {value}, {valid}, attended);
    } else {
      const typename Cache::template Numbers<1> of({key}, {value}, {valid}, 0);
      attend_to<float, kVector, kLanes>(query, of.keys, of.values, of.valid, attended);
    }
  }
  cache.scale(attended);
  store_attended<kWidth, kLanes, kThreads>(attended, params.parts);
}

template <typename T, int kWidth, int kHeads, int kUnroll, int kThreads>
__device__ inline void attend(const TokenAttentionParams& params) {
  attend_in<T, kWidth, kHeads, kUnroll, kThreads, SameCache<T>>(params, {});
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
  __shared__ float factors[kMaxSplits];
  __shared__ float total;
  if (threadIdx.x < 32) {
    float top = kNoScore;
    for (unsigned s = threadIdx.x; s < params.splits; s += 32) {
      const float other = parts[s * kStep + kWidth];
      top = other > top ? other : top;
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
      const float other = shuffle_xor(top, mask);
      top = other > top ? other : top;
    }
    float sum = 0.0f;
    for (unsigned s = threadIdx.x; s < params.splits; s += 32) {
      const float factor = exp(parts[s * kStep + kWidth] - top);
      factors[s] = factor;
      sum += factor * parts[s * kStep + kWidth + 1];
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
    if (threadIdx.x == 0) total = sum;
  }
  __syncthreads();
  T* const output = static_cast<T*>(params.output) + static_cast<uint64_t>(blockIdx.x) * kWidth;
  for (unsigned i = threadIdx.x; i < kWidth; i += kThreads) {
    float value = 0.0f;
#pragma unroll 8
    for (unsigned s = 0; s < params.splits; ++s) value += factors[s] * parts[s * kStep + i];
    output[i] = Narrow<T>::from(value / total);
  }
}

}  // namespace onnxopt
