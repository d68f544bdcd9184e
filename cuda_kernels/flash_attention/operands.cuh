// Queries, keys and values of a tile on their way to shared memory, from where they lie.
#pragma once

#include "device/copy_async.cuh"
#include "device/dtypes.cuh"
#include "flash_attention/abi.h"
#include "flash_attention/tile.cuh"

namespace onnxopt {

// What a block works on.
struct FlashPlace {
  unsigned batch;
  unsigned head;
  unsigned first;  // query of the block
};

template <typename T, typename Tile>
struct FlashOperands {
  using Params = FlashAttentionParams;
  using Place = FlashPlace;

  // Rows of a tile, zeros where there are none.
  template <int kRows, int kElements, int kPitch>
  __device__ static void fetch(const T* from, unsigned of_token, unsigned exist, unsigned char* to) {
    constexpr int kPart = Tile::kAccess / 2;  // elements of a copy
    constexpr int kParts = (kElements + 7) / 8 * 8 / kPart;
#pragma unroll 4
    for (int i = threadIdx.x; i < kRows * kParts; i += Tile::kThreads) {
      const unsigned row = i / kParts;
      const unsigned column = i % kParts * kPart;
      const bool inside = row < exist && column < kElements;
      const T* const source = from + (inside ? row * of_token + column : 0);
      unsigned char* const place = to + (row * kPitch + column) * 2;
      if constexpr (Tile::kAccess == 2) {
        *reinterpret_cast<T*>(place) = inside ? *source : T{};
      } else {
        copy_or_zero_async<Tile::kAccess>(place, source, inside);
      }
    }
  }

  __device__ static const T* of(const HeadsOf& x, unsigned batch, unsigned head, unsigned token) {
    return static_cast<const T*>(x.data) + batch * x.of_batch + head * x.of_head +
           static_cast<uint64_t>(token) * x.of_token;
  }

  __device__ static void fetch_queries(const Params& p, const Place& at, unsigned char* to) {
    const T* const from = of(p.q, at.batch, at.head, at.first);
    fetch<Tile::kQueries, Tile::kWidth, Tile::kQueryPitch>(from, p.q.of_token, p.queries - at.first, to);
  }

  __device__ static void fetch_keys(const Params& p, const Place& at, unsigned first, unsigned char* to) {
    const unsigned head = at.head / p.group;
    const unsigned exist = p.keys - first;
    const T* const keys = of(p.k, at.batch, head, first);
    const T* const values = of(p.v, at.batch, head, first);
    fetch<Tile::kKeys, Tile::kWidth, Tile::kPitch>(keys, p.k.of_token, exist, to);
    fetch<Tile::kKeys, Tile::kValues, Tile::kValuePitch>(values, p.v.of_token, exist, to + Tile::kKeyBytes);
  }
};

}  // namespace onnxopt
