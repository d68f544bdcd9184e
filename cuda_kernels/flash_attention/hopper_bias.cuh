// The bias of an attention by products of warpgroups. Scores begin as it, and products are added: a sum later would
// take as many registers again.
//
// One that all queries share, as a mask of padding is, comes to shared memory with its tile of keys. Any other is
// loaded by the lanes that need it, while the tile is on its way.
#pragma once

#include "device/copy_async.cuh"
#include "device/vector.cuh"
#include "flash_attention/softmax.cuh"

namespace onnxopt {

// Op: as of FlashAttention. Tile: see hopper_tile.cuh.
template <typename Op, typename Tile>
struct FlashHopperBias {
  using Params = FlashAttentionParams;
  using Place = FlashPlace;
  using T = typename Op::Stored;
  using Softmax = FlashSoftmax<Op, Tile>;
  using Scores = typename Softmax::Scores;

  static constexpr int kTileBytes = Op::kBiased ? 2 * Tile::kKeys : 0;  // of one that all queries share
  // Over the scale, finite masks may be beyond float32. Rows that they hide all keys of have a mean then, as without.
  static constexpr float kLeast = -1e37f;

  // Whether an element and the one behind it can be loaded at once, in every row.
  __device__ static bool in_pairs(const Params& p) {
    const uint64_t odd = reinterpret_cast<uint64_t>(p.bias) / sizeof(T) | p.bias_batch | p.bias_head | p.bias_query;
    return (odd & 1) == 0;
  }

  __device__ static bool is_copied(const Params& p) { return p.bias_query == 0 && in_pairs(p); }

  // Asks for that of a tile of keys from `first` on, by 128 threads of which this one is number `thread`. Later ones
  // ask for nothing.
  __device__ static void fetch(const Params& p, const Place& at, unsigned first, unsigned char* to, unsigned thread) {
    if constexpr (Op::kBiased) {
      if (!is_copied(p) || thread >= 128) return;
      const T* const of_head = Softmax::bias_of(p, at);
      for (unsigned i = thread; i < Tile::kKeys / 2; i += 128) {
        const int left = static_cast<int>(p.keys) - static_cast<int>(first + 2 * i);
        const int bytes = 2 * max(min(left, 2), 0);
        copy_part_async<4>(to + 4 * i, bytes > 0 ? of_head + first + 2 * i : of_head, bytes);
      }
    }
  }

  // The bias of the lane's queries and a tile of keys from `first` on, over the scale, where it is not copied. Keys
  // that there are none of have any; Softmax::hide comes later.
  __device__ static void load(const Params& p, const Place& at, unsigned first, Scores& s) {
    if constexpr (Op::kBiased) {
      if (is_copied(p)) return;
      if (in_pairs(p) && p.keys % 2 == 0) {
        load_rows<true>(p, at, first, s);
      } else {
        load_rows<false>(p, at, first, s);
      }
    }
  }

  // The same where it is copied, and there.
  __device__ static void take(const Params& p, const unsigned char* copied, Scores& s) {
    if constexpr (Op::kBiased) {
      if (!is_copied(p)) return;
      const T* const of_lane = reinterpret_cast<const T*>(copied) + threadIdx.x % 4 * 2;
      const float inverse = kFlashLog2E / p.scale;
#pragma unroll
      for (int j = 0; j < Tile::kKeyTiles; ++j) {
        const Vector<T, 2> two = load_vector<T, 2>(of_lane + 8 * j);
#pragma unroll
        for (int e = 0; e < 2; ++e) s.at[j][e] = s.at[j][2 + e] = over_scale(widen(two.at[e]), inverse);
      }
    }
  }

  // kInPairs: two neighbours are loaded at once.
  template <bool kInPairs>
  __device__ static void load_rows(const Params& p, const Place& at, unsigned first, Scores& s) {
    const T* const of_head = Softmax::bias_of(p, at);
    const unsigned query = Softmax::query_of_lane(at);
    const unsigned key = first + threadIdx.x % 4 * 2;
    const float inverse = kFlashLog2E / p.scale;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const T* const row = of_head + static_cast<uint64_t>(min(query + 8 * half, p.queries - 1)) * p.bias_query;
      Vector<T, 2> loaded[Tile::kKeyTiles];  // all are asked for before any is used
#pragma unroll
      for (int j = 0; j < Tile::kKeyTiles; ++j) loaded[j] = pair<kInPairs>(row, key + 8 * j, p.keys);
#pragma unroll
      for (int j = 0; j < Tile::kKeyTiles; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) s.at[j][2 * half + e] = over_scale(widen(loaded[j].at[e]), inverse);
      }
    }
  }

  template <bool kInPairs>
  __device__ static Vector<T, 2> pair(const T* row, unsigned key, unsigned keys) {
    if constexpr (kInPairs) return load_vector<T, 2>(row + min(key, keys - 2));
    return {{row[min(key, keys - 1)], row[min(key + 1, keys - 1)]}};
  }

  __device__ static float over_scale(float bias, float inverse) {
    const float x = bias * inverse;
    return x < kLeast && bias > Softmax::nothing() ? kLeast : x;
  }
};

}  // namespace onnxopt
