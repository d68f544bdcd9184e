// The bias of an attention by products of warpgroups. One that not all queries share is loaded by the lanes that need
// it, while the tile is on its way.
#pragma once

#include "device/vector.cuh"
#include "flash_attention/bias.cuh"

namespace onnxopt {

// Op: as of FlashAttention. Tile: see hopper_tile.cuh.
template <typename Op, typename Tile>
struct FlashHopperBias : FlashBias<Op, Tile> {
  using Params = FlashAttentionParams;
  using Place = FlashPlace;
  using T = typename Op::Stored;
  using Softmax = FlashSoftmax<Op, Tile>;
  using Scores = typename Softmax::Scores;
  using Base = FlashBias<Op, Tile>;

  // The bias of the lane's queries and a tile of keys from `first` on, over the scale, where it is not copied. Keys
  // that there are none of have any; Softmax::hide comes later.
  __device__ static void load(const Params& p, const Place& at, unsigned first, Scores& s) {
    if constexpr (Op::kBiased) {
      if (Base::is_copied(p)) return;
      if (Base::template is_aligned<2>(p) && p.keys % 2 == 0) {
        load_rows<true>(p, at, first, s);
      } else {
        load_rows<false>(p, at, first, s);
      }
    }
  }

  // The same where it is copied, and there.
  __device__ static void take(const Params& p, const unsigned char* copied, Scores& s) {
    if constexpr (Op::kBiased) {
      if (Base::is_copied(p)) Base::take(copied, Base::factor(p), s);
    }
  }

  // kInPairs: two neighbours are loaded at once.
  template <bool kInPairs>
  __device__ static void load_rows(const Params& p, const Place& at, unsigned first, Scores& s) {
    const T* const of_head = Softmax::bias_of(p, at);
    const unsigned query = Softmax::query_of_lane(at);
    const unsigned key = first + threadIdx.x % 4 * 2;
    const float factor = Base::factor(p);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const T* const row = of_head + static_cast<uint64_t>(min(query + 8 * half, p.queries - 1)) * p.bias_query;
      Vector<T, 2> loaded[Tile::kKeyTiles];  // all are asked for before any is used
#pragma unroll
      for (int j = 0; j < Tile::kKeyTiles; ++j) loaded[j] = pair<kInPairs>(row, key + 8 * j, p.keys);
#pragma unroll
      for (int j = 0; j < Tile::kKeyTiles; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) s.at[j][2 * half + e] = Base::scaled(widen(loaded[j].at[e]), factor);
      }
    }
  }

  template <bool kInPairs>
  __device__ static Vector<T, 2> pair(const T* row, unsigned key, unsigned keys) {
    if constexpr (kInPairs) return load_vector<T, 2>(row + min(key, keys - 2));
    return {{row[min(key, keys - 1)], row[min(key + 1, keys - 1)]}};
  }
};

}  // namespace onnxopt
