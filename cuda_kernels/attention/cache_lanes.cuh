// Attention of some rows to a cache of keys and values without matrix units: of few rows, and where the GPU has no
// products of the dtype.
//
// kWidth elements of a key are spread over neighbouring lanes, 16 bytes each; kUnroll keys are in flight. Every group
// of lanes keeps its own maximum, sum and weighted values, which are joined over the block. More than kAtOnce rows take
// another pass over the keys each, as registers hold no more. Cache: see cache.cuh.
#pragma once

#include "attention/cache.cuh"
#include "attention/finish_block.cuh"
#include "attention/key_masks.cuh"
#include "device/dtypes.cuh"
#include "device/dynamic_shared.cuh"
#include "device/scalar.cuh"
#include "device/shuffle.cuh"
#include "device/vector.cuh"

namespace onnxopt {

// What some keys contribute to one row: values weighted by exp(score - top), and the sum of these weights.
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

  // Joins what the groups of a warp found, each of which is kLanes lanes.
  template <int kLanes>
  __device__ void join_groups() {
#pragma unroll
    for (int mask = kLanes; mask < 32; mask *= 2) {
      const float other_top = shuffle_xor(top, mask);
      scale_to(other_top > top ? other_top : top);
      sum += shuffle_xor(sum, mask);
#pragma unroll
      for (int j = 0; j < kValues; ++j) value[j] += shuffle_xor(value[j], mask);
    }
  }
};

// A cache that holds keys and values as new tokens are; cache_codes.cuh has one of codes.
template <typename T>
struct SameCache {
  using Code = T;
  struct Scales {};
  enum : int {  // constants, of which static members would be symbols in the compiled kernels
    kVector = 16 / sizeof(T),
    kSame = 1,  // nothing is converted
  };
  using Words = Vector<T, kVector>;

  __device__ SameCache(const Scales&, unsigned, unsigned) {}
  __device__ float of_query(float x, int) const { return x; }
  template <int kRows>
  __device__ void scale(Attended<kVector> (&)[kRows]) const {}
};

constexpr int keys_at_once(int rows) { return rows <= 4 ? 4 : 2; }

// Codes: SameCache or CodedCache. kUnroll: keys that a lane attends to at once. kParts: times as many are in flight.
template <typename T, int kWidth, int kRows, int kThreads, bool kMasked, typename Codes = SameCache<T>,
          int kUnroll = keys_at_once(kRows), int kParts = 1>
struct CacheLanes {
  static constexpr int kVector = 16 / sizeof(T);
  static constexpr int kLanes = kWidth / kVector;  // of a key
  static constexpr int kKeys = kThreads / kLanes;  // at once
  static constexpr int kAtOnce = kRows < 8 ? kRows : 8;
  static constexpr int kLoads = kUnroll * kParts;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kFound = kWidth + 2;  // values, the largest score, the sum of weights
  static constexpr unsigned kBytes = kWarps * kRows * kFound * sizeof(float);
  static_assert(kLanes <= 32 && (kLanes & (kLanes - 1)) == 0, "a key's lanes are a part of a warp");
  using Code = typename Codes::Code;
  using Words = typename Codes::Words;
  using Scales = typename Codes::Scales;
  using Masks = KeyMasks<T, kAtOnce, kUnroll, kMasked>;

  // Adds kUnroll keys to what each row attends to. Every lane of the warp takes part; keys that are not valid count
  // nothing.
  template <typename Number>
  __device__ static void add(const float (&query)[kAtOnce][kVector], const Vector<Number, kVector> (&keys)[kUnroll],
                             const Vector<Number, kVector> (&values)[kUnroll], const bool (&valid)[kUnroll],
                             const Masks& masks, Attended<kVector> (&attended)[kAtOnce]) {
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      float score[kUnroll];
      float top = attended[r].top;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        score[u] = 0.0f;
#pragma unroll
        for (int j = 0; j < kVector; ++j) score[u] += query[r][j] * widen(keys[u].at[j]);
#pragma unroll
        for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) score[u] += shuffle_xor(score[u], lanes);
        if constexpr (kMasked) score[u] += masks.at(r, u);
        if (valid[u] && !(score[u] <= top)) top = score[u];  // NaN shows
      }
      attended[r].scale_to(top);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const float weight = valid[u] ? exp(score[u] - top) : 0.0f;
        attended[r].sum += weight;
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          if (valid[u]) attended[r].value[j] += weight * widen(values[u].at[j]);
        }
      }
    }
  }

  // Nothing: the caches are short.
  template <typename Cache>
  __device__ static void ask_ahead(const Cache&) {}

  template <typename Cache>
  __device__ static void attend(const Cache& cache, const Scales& scales) {
#pragma unroll 1
    for (int base = 0; base < kRows; base += kAtOnce) pass(cache, scales, base);
    __syncthreads();
    join_warps(cache);
    join_if_last<T, kWidth, kRows, kThreads>(cache);
  }

  // Rows `base` to base + kAtOnce, as far as they are there.
  template <typename Cache>
  __device__ static void pass(const Cache& cache, const Scales& scales, int base) {
    const unsigned part = threadIdx.x % kLanes * kVector;
    const unsigned key = threadIdx.x / kLanes;
    const Codes codes(scales, cache.group, part);
    float query[kAtOnce][kVector];
    Attended<kVector> attended[kAtOnce];
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      const auto words = load_vector<T, kVector>(cache.query(min(base + r, kRows - 1)) + part);
#pragma unroll
      for (int j = 0; j < kVector; ++j) query[r][j] = codes.of_query(cache.scale * widen(words.at[j]), j);
    }
    const typename Masks::Rows mask_rows = Masks::rows_of(cache, base, 1, kRows - 1);
    for (unsigned first = cache.begin; first < cache.end; first += kKeys * kLoads) {
      Words keys[kLoads] = {};
      Words values[kLoads] = {};
      bool valid[kLoads];
#pragma unroll
      for (int u = 0; u < kLoads; ++u) {
        const unsigned at = first + u * kKeys + key;
        valid[u] = at < cache.end;
        if (valid[u]) load(cache, codes, at, part, keys[u], values[u]);
      }
      Masks masks;
      masks.load(mask_rows, first + key, kKeys, cache.end);
#pragma unroll
      for (int u = 0; u < kLoads; ++u) {
        const unsigned at = first + u * kKeys + key;
        if (!valid[u] || base > 0 || !cache.writes(cache.new_token(at))) continue;
        store_at_once(cache.present_key(at) + part, keys[u]);
        store_at_once(cache.present_value(at) + part, values[u]);
      }
      if constexpr (Codes::kSame) {
        static_assert(kParts == 1, "nothing is converted");
        add<T>(query, keys, values, valid, masks, attended);
      } else {
#pragma unroll
        for (int u = 0; u < kLoads; u += kUnroll) {
          const typename Codes::template Numbers<kUnroll> of(keys, values, valid, u);
          if (u > 0) masks.load(mask_rows, first + u * kKeys + key, kKeys, cache.end);
          add<float>(query, of.keys, of.values, of.valid, masks, attended);
        }
      }
    }
    codes.scale(attended);
    place(attended, base);
  }

  template <typename Cache>
  __device__ static void load(const Cache& cache, const Codes& codes, unsigned at, unsigned part, Words& key,
                              Words& value) {
    const int token = cache.new_token(at);
    if constexpr (Codes::kSame) {
      key = load_once<T, kVector>((token < 0 ? cache.past_key(at) : cache.new_key(token)) + part);
      value = load_once<T, kVector>((token < 0 ? cache.past_value(at) : cache.new_value(token)) + part);
    } else if (token < 0) {
      key = load_once<Code, kVector>(cache.past_key(at) + part);
      value = load_once<Code, kVector>(cache.past_value(at) + part);
    } else {
      key = codes.key(load_vector<T, kVector>(cache.new_key(token) + part));
      value = codes.value(load_vector<T, kVector>(cache.new_value(token) + part));
    }
  }

  // Joins what the lanes of a warp found, in shared memory.
  __device__ static void place(Attended<kVector> (&attended)[kAtOnce], int base) {
    float* const shared = reinterpret_cast<float*>(dynamic_shared());
    const unsigned warp = threadIdx.x / 32;
    const unsigned lane = threadIdx.x % kLanes;
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      Attended<kVector>& mine = attended[r];
      mine.template join_groups<kLanes>();
      if (threadIdx.x % 32 < kLanes && base + r < kRows) {
        float* const part = shared + (warp * kRows + base + r) * kFound;
#pragma unroll
        for (int j = 0; j < kVector; ++j) part[lane * kVector + j] = mine.value[j];
        part[kWidth] = mine.top;
        part[kWidth + 1] = mine.sum;
      }
    }
  }

  // Joins what the warps of a block found, two elements of a row a thread.
  template <typename Cache>
  __device__ static void join_warps(const Cache& cache) {
    const float* const shared = reinterpret_cast<const float*>(dynamic_shared());
    for (unsigned i = threadIdx.x; i < kRows * kWidth / 2; i += kThreads) {
      const unsigned row = i / (kWidth / 2);
      const unsigned column = i % (kWidth / 2) * 2;
      const float* const found = shared + row * kFound;
      float top = kNoScore;
      for (int w = 0; w < kWarps; ++w) {
        const float of_warp = found[w * kRows * kFound + kWidth];
        top = of_warp > top ? of_warp : top;
      }
      float sum = 0.0f;
      Vector<float, 2> value = {};
      for (int w = 0; w < kWarps; ++w) {
        const float* const of_warp = found + w * kRows * kFound;
        const float factor = exp(of_warp[kWidth] - top);
        const auto x = load_vector<float, 2>(of_warp + column);
        sum += factor * of_warp[kWidth + 1];
        value.at[0] += factor * x.at[0];
        value.at[1] += factor * x.at[1];
      }
      put_found<T, kWidth>(cache, row, column, value, top, sum);
    }
  }
};

}  // namespace onnxopt
