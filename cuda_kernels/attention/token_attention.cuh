// One token's attention to a cache of keys and values, which grows by that token: the cache is read once and written
// once, by the kernel that computes with it.
//
// A block takes some tokens of one group of one sequence, all query heads of the group with them. kWidth elements of a
// key are spread over neighbouring lanes, 16 bytes each, for kUnroll tokens at a time. What a thread computes with
// comes to places of its own in shared memory, kStages - 1 times ahead, so that loads wait neither for sums nor for the
// stores of the cache. Every group of lanes keeps its own maximum, sum and weighted values, which are joined over the
// block, and over all blocks by a second kernel. Scores, weights and sums are float32.
#pragma once

#include "attention/token_attention_abi.h"
#include "device/copy_async.cuh"
#include "device/dtypes.cuh"
#include "device/dynamic_shared.cuh"
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

// A thread's own places in shared memory for keys and values: kStages of kUnroll tokens each. Nothing but the thread
// itself waits for them.
template <typename T, int kVector, int kUnroll, int kThreads, int kStages>
struct Ring {
  using Words = Vector<T, kVector>;

  __device__ static Words* key(unsigned stage, int u) {
    return reinterpret_cast<Words*>(dynamic_shared()) + ((stage * kUnroll + u) * 2) * kThreads + threadIdx.x;
  }
  __device__ static Words* value(unsigned stage, int u) { return key(stage, u) + kThreads; }
};

// Bytes of dynamic shared memory of a block: for what is on its way, and later for what its warps found.
template <typename T, int kWidth, int kHeads, int kUnroll, int kThreads, int kStages>
constexpr unsigned attend_bytes() {
  constexpr unsigned kPlaces = kStages * kUnroll * 2 * kThreads * 16;
  constexpr unsigned kFound = kThreads / 32 * kHeads * (kWidth + 2) * sizeof(float);
  return kPlaces > kFound ? kPlaces : kFound;
}

// Joins what the lanes of a block found, and writes it to the block's place in `all_parts`.
template <int kWidth, int kLanes, int kThreads, int kVector, int kHeads>
__device__ inline void store_attended(Attended<kVector> (&attended)[kHeads], float* all_parts) {
  constexpr int kWarps = kThreads / 32;
  constexpr int kPart = kWidth + 2;  // values, the largest score, the sum of weights
  float* const shared = reinterpret_cast<float*>(dynamic_shared());
  const unsigned warp = threadIdx.x / 32;
  const unsigned lane = threadIdx.x % kLanes;
  __syncthreads();  // all have read what came to this memory
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
      float* const part = shared + (warp * kHeads + h) * kPart;
#pragma unroll
      for (int j = 0; j < kVector; ++j) part[lane * kVector + j] = mine.value[j];
      part[kWidth] = mine.top;
      part[kWidth + 1] = mine.sum;
    }
  }
  __syncthreads();
  float* const parts = all_parts + static_cast<uint64_t>(blockIdx.x) * kHeads * kPart;
  for (unsigned i = threadIdx.x; i < kHeads * kWidth; i += kThreads) {
    const unsigned h = i / kWidth;
    const float* const found = shared + h * kPart;
    float top = kNoScore;
    for (int w = 0; w < kWarps; ++w) {
      const float of_warp = found[w * kHeads * kPart + kWidth];
      top = of_warp > top ? of_warp : top;
    }
    float sum = 0.0f;
    float value = 0.0f;
    for (int w = 0; w < kWarps; ++w) {
      const float* const of_warp = found + w * kHeads * kPart;
      const float factor = exp(of_warp[kWidth] - top);
      sum += factor * of_warp[kWidth + 1];
      value += factor * of_warp[i % kWidth];
    }
    float* const part = parts + h * kPart;
    part[i % kWidth] = value;
    if (i % kWidth == 0) {
      part[kWidth] = top;
      part[kWidth + 1] = sum;
    }
  }
}

template <typename T, int kWidth, int kHeads, int kUnroll, int kThreads, int kStages>
__device__ inline void attend(const TokenAttentionParams& params) {
  constexpr int kVector = 16 / sizeof(T);
  constexpr int kLanes = kWidth / kVector;    // of a token
  constexpr int kTokens = kThreads / kLanes;  // at once
  constexpr int kStep = kTokens * kUnroll;
  static_assert(kLanes <= 32 && (kLanes & (kLanes - 1)) == 0, "a token's lanes are a part of a warp");
  using Words = Vector<T, kVector>;
  using Places = Ring<T, kVector, kUnroll, kThreads, kStages>;
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
  const T* const past_k = static_cast<const T*>(params.past_k) + past;
  const T* const past_v = static_cast<const T*>(params.past_v) + past;
  T* const present_k = static_cast<T*>(params.present_k) + present;
  T* const present_v = static_cast<T*>(params.present_v) + present;
  const uint64_t in_new = static_cast<uint64_t>(of_sequence) * kWidth + lane * kVector;

  let_next_begin();
  wait_for_previous();
  float query[kHeads][kVector];
  Attended<kVector> attended[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const T* const q = static_cast<const T*>(params.q) + sequence * params.q_stride +
                       (static_cast<uint64_t>(of_sequence) * kHeads + h) * kWidth + lane * kVector;
    const Words words = load_vector<T, kVector>(q);
#pragma unroll
    for (int j = 0; j < kVector; ++j) query[h][j] = params.scale * widen(words.at[j]);
  }
  const auto fetch = [&](unsigned first, unsigned stage) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const unsigned at = first + u * kTokens + token;
      if (at < end) {
        const uint64_t offset = static_cast<uint64_t>(at) * kWidth;
        copy_async(Places::key(stage, u), reinterpret_cast<const Words*>(past_k + offset));
        copy_async(Places::value(stage, u), reinterpret_cast<const Words*>(past_v + offset));
      }
    }
    end_group();
  };
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) fetch(begin + stage * kStep, stage);
  unsigned stage = 0;
#pragma unroll 1
  for (unsigned first = begin; first < end; first += kStep) {
    fetch(first + (kStages - 1) * kStep, stage == 0 ? kStages - 1 : stage - 1);
    wait_for_groups<kStages - 1>();
    Words keys[kUnroll] = {};
    Words values[kUnroll] = {};
    bool valid[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const unsigned at = first + u * kTokens + token;
      valid[u] = at < end;
      if (!valid[u]) continue;
      keys[u] = *Places::key(stage, u);
      values[u] = *Places::value(stage, u);
      store_vector<T, kVector>(present_k + static_cast<uint64_t>(at) * kWidth, keys[u]);
      store_vector<T, kVector>(present_v + static_cast<uint64_t>(at) * kWidth, values[u]);
    }
    attend_to<T, kVector, kLanes>(query, keys, values, valid, attended);
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  if (split == params.splits - 1) {  // the new token
    const Words key = load_vector<T, kVector>(static_cast<const T*>(params.k) + sequence * params.k_stride + in_new);
    const Words value = load_vector<T, kVector>(static_cast<const T*>(params.v) + sequence * params.v_stride + in_new);
    const bool valid = token == 0;
    if (valid) {
      store_vector<T, kVector>(present_k + static_cast<uint64_t>(params.past) * kWidth, key);
      store_vector<T, kVector>(present_v + static_cast<uint64_t>(params.past) * kWidth, value);
    }
    attend_to<T, kVector, kLanes>(query, {key}, {value}, {valid}, attended);
  }

  store_attended<kWidth, kLanes, kThreads>(attended, params.parts);
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
