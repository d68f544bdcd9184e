// Caches of 8-bit codes: int8, or floats of 8 bits, times scales of the tensor, a head, an element of heads, or both.
//
// A lane has the same elements of every key. So keys' scales are part of the query, and values' scales are multiplied
// with the sum at the end: a code costs no more than its conversion. New tokens become codes before anything reads
// them.
#pragma once

#include "attention/masked_attention.cuh"
#include "device/narrow_float8.cuh"

namespace onnxopt {

// Floats of four codes that lie in a word.
template <typename C>
__device__ inline void widen_codes(uint32_t word, float (&numbers)[4]);

// With 128 added, a code is the last byte of the mantissa of 2^23.
template <>
__device__ inline void widen_codes<int8_t>(uint32_t word, float (&numbers)[4]) {
  const uint32_t positive = word ^ 0x80808080u;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    numbers[i] = __uint_as_float(__byte_perm(positive, 0x4b000000u, 0x7440u + i)) - 8388736.0f;
  }
}

template <>
__device__ inline void widen_codes<float8e4m3fn>(uint32_t word, float (&numbers)[4]) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) widen_pair(static_cast<uint16_t>(word >> (8 * i)), numbers[i], numbers[i + 1]);
}

// To nearest even, saturating. NaN becomes the lowest code of int8, as in ONNX Runtime's QuantizeLinear.
template <typename C>
__device__ inline C narrow_code(float x) {
  return Narrow<C>::from(x);
}

template <>
__device__ inline int8_t narrow_code<int8_t>(float x) {
  const float rounded = ::rintf(x);
  return static_cast<int8_t>(rounded > -128.0f ? (rounded < 127.0f ? rounded : 127.0f) : -128.0f);
}

// C: of the codes. S: of the scales.
template <typename T, typename C, typename S>
struct CodedCache {
  using Code = C;
  using Scales = CacheScales;
  static constexpr int kVector = 16 / sizeof(T);
  static constexpr bool kSame = false;
  using Words = Vector<C, kVector>;

  const CacheScales& scales;
  const unsigned head;     // of keys
  const unsigned element;  // the first one of the lane

  __device__ CodedCache(const CacheScales& scales, unsigned head, unsigned element)
      : scales(scales), head(head), element(element) {}

  // Read where they are used, and in no register in between.
  __device__ float of_keys(int j) const {
    return widen(static_cast<const S*>(scales.k)[head * scales.k_head + (element + j) * scales.k_element]);
  }
  __device__ float of_values(int j) const {
    return widen(static_cast<const S*>(scales.v)[head * scales.v_head + (element + j) * scales.v_element]);
  }

  __device__ float of_query(float x, int j) const { return x * of_keys(j); }

  template <int kRows>
  __device__ void scale(Attended<kVector> (&attended)[kRows]) const {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const float scale = of_values(j);
#pragma unroll
      for (int r = 0; r < kRows; ++r) attended[r].value[j] *= scale;
    }
  }

  __device__ Words key(const Vector<T, kVector>& x) const {
    Words y;
#pragma unroll
    for (int j = 0; j < kVector; ++j) y.at[j] = code(widen(x.at[j]), of_keys(j));
    return y;
  }

  __device__ Words value(const Vector<T, kVector>& x) const {
    Words y;
#pragma unroll
    for (int j = 0; j < kVector; ++j) y.at[j] = code(widen(x.at[j]), of_values(j));
    return y;
  }

  __device__ C code(float x, float scale) const {
    if (scales.by_reciprocal == 0) return narrow_code<C>(x / scale);
    return narrow_code<C>(x * (scale == 0.0f ? 0.0f : 1.0f / scale));
  }

  // What the arithmetic reads: of kCount keys from `first` on, of those that were loaded.
  template <int kCount>
  struct Numbers {
    Vector<float, kVector> keys[kCount];
    Vector<float, kVector> values[kCount];
    bool valid[kCount];

    template <int kLoads>
    __device__ Numbers(const Words (&of_keys)[kLoads], const Words (&of_values)[kLoads], const bool (&are)[kLoads],
                       int first) {
#pragma unroll
      for (int u = 0; u < kCount; ++u) {
        valid[u] = are[first + u];
        widen_all(of_keys[first + u], keys[u]);
        widen_all(of_values[first + u], values[u]);
      }
    }
  };

  __device__ static void widen_all(const Words& codes, Vector<float, kVector>& x) {
#pragma unroll
    for (int w = 0; w < kVector / 4; ++w) {
      float four[4];
      widen_codes<C>(codes.words[w], four);
#pragma unroll
      for (int i = 0; i < 4; ++i) x.at[4 * w + i] = four[i];
    }
  }
};

// CodedCache in tiles: numbers are rounded to T as DequantizeLinear rounds them, and lie beside the stages. A lane has
// the same elements of every key of a tile.
template <typename T, typename C, typename S, int kWidth>
struct CodedTiles {
  using Tile = FlashTile<kWidth, kWidth, 1, 16, 2, 16>;
  using Code = C;
  using Scales = CacheScales;
  enum : int {
    kPitch = kWidth,
    kKeyBytes = 16 * kWidth,
    kStageBytes = 2 * kKeyBytes,
    kNumberBytes = Tile::kStageBytes,
    kElements = 16,  // of a lane
    kParts = kWidth / kElements,
    kOfLane = (16 * kParts + 31) / 32,
  };
  static_assert(sizeof(C) == 1 && 32 % kParts == 0, "a lane has the same elements of every key");
  using Eight = CodedCache<T, C, S>;

  const CacheScales& scales;
  const unsigned head;
  float of_keys[kElements];
  float of_values[kElements];

  __device__ static unsigned element() { return threadIdx.x % kParts * kElements; }

  __device__ CodedTiles(const CacheScales& scales, unsigned head) : scales(scales), head(head) {
    const Eight first(scales, head, element());
#pragma unroll
    for (int j = 0; j < kElements; ++j) {
      of_keys[j] = first.of_keys(j);
      of_values[j] = first.of_values(j);
    }
  }

  __device__ void add_new(const T* key, const T* value, unsigned char* key_to, unsigned char* value_to) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Eight codes(scales, head, element() + 8 * half);
      const typename Eight::Words k = codes.key(load_vector<T, 8>(key + 8 * half));
      const typename Eight::Words v = codes.value(load_vector<T, 8>(value + 8 * half));
      store_vector(reinterpret_cast<C*>(key_to) + 8 * half, k);
      store_vector(reinterpret_cast<C*>(value_to) + 8 * half, v);
    }
  }

  __device__ static void convert(const unsigned char* from, const float (&factors)[kElements], unsigned char* to) {
    const auto codes = load_vector<C, kElements>(reinterpret_cast<const C*>(from));
    Vector<uint32_t, 4> halves[2];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      float x[4];
      widen_codes<C>(codes.words[w], x);
      halves[w / 2].at[w % 2 * 2] = narrow_pair<T>(x[0] * factors[4 * w], x[1] * factors[4 * w + 1]);
      halves[w / 2].at[w % 2 * 2 + 1] = narrow_pair<T>(x[2] * factors[4 * w + 2], x[3] * factors[4 * w + 3]);
    }
    store_vector(reinterpret_cast<uint32_t*>(to), halves[0]);
    store_vector(reinterpret_cast<uint32_t*>(to) + 4, halves[1]);
  }

  __device__ const unsigned char* numbers(const unsigned char* tile, unsigned char* to) const {
    const unsigned lane = threadIdx.x % 32;
    __syncwarp();  // all lanes have read the numbers before
#pragma unroll
    for (int u = 0; u < kOfLane; ++u) {
      const unsigned key = lane / kParts + u * (32 / kParts);
      if (16 * kParts % 32 != 0 && key >= 16) break;
      unsigned char* const place = to + (key * Tile::kPitch + element()) * 2;
      convert(tile + key * kPitch + element(), of_keys, place);
      convert(tile + kKeyBytes + key * kPitch + element(), of_values, place + Tile::kKeyBytes);
    }
    __syncwarp();
    return to;
  }
};

// kParts: in which the keys under way become floats, so that few are, where no tensor cores multiply them in tiles.
template <typename T, typename C, typename S, int kParts, int kWidth, int kHeads, int kUnroll, int kThreads,
          int kStages>
__device__ inline void attend_to_codes(const TokenAttentionParams& params) {
  constexpr bool kTiles = kStages > 0 && has_products<T>();
  let_next_begin();
  TokenCache<T, kWidth, kHeads, kTiles, C> cache(params);
  if constexpr (kTiles) {
    using Tiles = CacheTiles<T, kWidth, kHeads, kThreads, kStages, false, CodedTiles<T, C, S, kWidth>>;
    attend_behind<Tiles>(cache, params.scales, [] {});
  } else {
    using Lanes = CacheLanes<T, kWidth, kHeads, kThreads, false, CodedCache<T, C, S>, kUnroll, kParts>;
    attend_behind<Lanes>(cache, params.scales, [] {});
  }
}

template <typename T, typename C, typename S, int kParts, int kWidth, int kRows, int kUnroll, int kThreads, int kStages,
          bool kSlots>
__device__ inline void attend_masked_to_codes(const MaskedAttentionParams& params) {
  constexpr bool kTiles = kStages > 0 && has_products<T>();
  __shared__ int slots[kMostNew];
  let_next_begin();
  MaskedCache<T, kWidth, kRows, kSlots, kTiles, C> cache(params, slots);
  if constexpr (kTiles) {
    using Tiles = CacheTiles<T, kWidth, kRows, kThreads, kStages, true, CodedTiles<T, C, S, kWidth>>;
    attend_behind_slots<Tiles>(params, slots, cache, params.scales);
  } else {
    using Lanes = CacheLanes<T, kWidth, kRows, kThreads, true, CodedCache<T, C, S>, kUnroll, kParts>;
    attend_behind_slots<Lanes>(params, slots, cache, params.scales);
  }
}

}  // namespace onnxopt
