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

  static constexpr int kPart = Tile::kAccess / Tile::kBytes;  // elements of a copy

  // Rows of a tile, zeros where there are none. kKeys: they are those of keys, which have an order of their own.
  template <int kRows, int kElements, int kPitch, bool kKeys>
  __device__ static void fetch(const T* from, unsigned of_token, unsigned exist, unsigned char* to) {
    constexpr int kParts = (kElements + 7) / 8 * 8 / kPart;
    if constexpr (Tile::kThreads % kParts != 0 || kElements % kPart != 0) {
      fetch_parts<kRows, kElements, kPitch, kKeys>(from, of_token, exist, to);
    } else if (exist >= kRows) {
      fetch_rows<kRows, kElements, kPitch, kKeys, true>(from, of_token, exist, to);
    } else {
      fetch_rows<kRows, kElements, kPitch, kKeys, false>(from, of_token, exist, to);
    }
  }

  // Where threads take the same part of every row that they copy. kAll: all rows exist.
  template <int kRows, int kElements, int kPitch, bool kKeys, bool kAll>
  __device__ static void fetch_rows(const T* from, unsigned of_token, unsigned exist, unsigned char* to) {
    constexpr int kParts = (kElements + 7) / 8 * 8 / kPart;
    constexpr int kAtOnce = Tile::kThreads / kParts;  // a power of two, as rows are in `row_of`
    const unsigned first = threadIdx.x / kParts;
    const unsigned column = threadIdx.x % kParts * kPart;
    const uint64_t step = static_cast<uint64_t>(of_token) * kAtOnce;
    const T* source = from + static_cast<uint64_t>(first) * of_token + column;
    unsigned char* const place = to + ((kKeys ? Tile::row_of(first) : first) * kPitch + column) * Tile::kBytes;
#pragma unroll
    for (int i = 0; i < kRows; i += kAtOnce, source += step) {
      if (kRows % kAtOnce != 0 && first + i >= kRows) break;
      const bool inside = (kAll || first + i < exist) && column < kElements;
      copy(place + (kKeys ? Tile::row_of(i) : i) * kPitch * Tile::kBytes, inside ? source : from, inside);
    }
  }

  template <int kRows, int kElements, int kPitch, bool kKeys>
  __device__ static void fetch_parts(const T* from, unsigned of_token, unsigned exist, unsigned char* to) {
    constexpr int kParts = (kElements + 7) / 8 * 8 / kPart;
#pragma unroll 4
    for (int i = threadIdx.x; i < kRows * kParts; i += Tile::kThreads) {
      const unsigned row = i / kParts;
      const unsigned column = i % kParts * kPart;
      const bool inside = row < exist && column < kElements;
      const T* const source = from + (inside ? row * of_token + column : 0);
      copy(to + ((kKeys ? Tile::row_of(row) : row) * kPitch + column) * Tile::kBytes, source, inside);
    }
  }

  __device__ static void copy(unsigned char* to, const T* from, bool exists) {
    if constexpr (Tile::kAccess == 2) {
      *reinterpret_cast<T*>(to) = exists ? *from : T{};
    } else {
      copy_or_zero_async<Tile::kAccess>(to, from, exists);
    }
  }

  __device__ static const T* of(const HeadsOf& x, unsigned batch, unsigned head, unsigned token) {
    return static_cast<const T*>(x.data) + batch * x.of_batch + head * x.of_head +
           static_cast<uint64_t>(token) * x.of_token;
  }

  __device__ static void fetch_queries(const Params& p, const Place& at, unsigned char* to) {
    const T* const from = of(p.q, at.batch, at.head, at.first);
    fetch<Tile::kQueries, Tile::kWidth, Tile::kQueryPitch, false>(from, p.q.of_token, p.queries - at.first, to);
  }

  __device__ static void fetch_keys(const Params& p, const Place& at, unsigned first, unsigned char* to) {
    const T* const from = of(p.k, at.batch, at.head / p.group, first);
    fetch<Tile::kKeys, Tile::kWidth, Tile::kPitch, true>(from, p.k.of_token, p.keys - first, to);
  }

  __device__ static void fetch_values(const Params& p, const Place& at, unsigned first, unsigned char* to) {
    const T* const from = of(p.v, at.batch, at.head / p.group, first);
    fetch<Tile::kKeys, Tile::kValues, Tile::kValuePitch, true>(from, p.v.of_token, p.keys - first, to);
  }
};

}  // namespace onnxopt
