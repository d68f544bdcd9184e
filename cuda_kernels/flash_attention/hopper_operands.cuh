// Queries, keys and values of a tile on their way to where products of warpgroups read them.
#pragma once

#include "device/products/warpgroup_products.cuh"
#include "flash_attention/hopper_tile.cuh"
#include "flash_attention/operands.cuh"

namespace onnxopt {

template <typename T, typename Tile>
struct FlashHopperOperands {
  using Params = FlashAttentionParams;
  using Place = FlashPlace;
  using Plain = FlashOperands<T, Tile>;

  // Rows of a tile, zeros where there are none, by kThreads threads of which this one is number `thread`.
  template <int kRows, int kThreads>
  __device__ static void fetch(const T* from, unsigned of_token, unsigned exist, unsigned char* to, unsigned thread) {
    if (exist >= kRows) {
      fetch_rows<kRows, kThreads, true>(from, of_token, exist, to, thread);
    } else {
      fetch_rows<kRows, kThreads, false>(from, of_token, exist, to, thread);
    }
  }

  template <int kRows, int kThreads, bool kAll>
  __device__ static void fetch_rows(const T* from, unsigned of_token, unsigned exist, unsigned char* to,
                                    unsigned thread) {
    constexpr int kAtOnce = kThreads / 8;
    const unsigned first = thread / 8;
    const unsigned part = thread % 8;
    const T* source = from + static_cast<uint64_t>(first) * of_token + part * 8;
    const uint64_t step = static_cast<uint64_t>(of_token) * kAtOnce;
#pragma unroll
    for (int i = 0; i < kRows; i += kAtOnce, source += step) {
      const unsigned row = first + i;
      if (kRows % kAtOnce != 0 && row >= kRows) break;
      unsigned char* const place = to + row * Tile::kRow + (part ^ row % 8) * 16;
      const bool inside = kAll || row < exist;
#pragma unroll
      for (int panel = 0; panel < Tile::kPanels; ++panel) {
        const bool last = panel + 1 == Tile::kPanels;
        if (last && Tile::kLastParts < 8 && part >= Tile::kLastParts) continue;
        const bool exists = inside && (!last || Tile::kWidth % 16 == 0 || part + 1 < Tile::kLastParts);
        copy_or_zero_async<16>(place + panel * kRows * Tile::kRow, exists ? source + panel * 64 : from, exists);
      }
    }
  }

  template <int kThreads>
  __device__ static void fetch_keys(const Params& p, const Place& at, unsigned first, unsigned char* to,
                                    unsigned thread) {
    const T* const from = Plain::of(p.k, at.batch, at.head / p.group, first);
    fetch<Tile::kKeys, kThreads>(from, p.k.of_token, p.keys - first, to, thread);
  }

  template <int kThreads>
  __device__ static void fetch_values(const Params& p, const Place& at, unsigned first, unsigned char* to,
                                      unsigned thread) {
    const T* const from = Plain::of(p.v, at.batch, at.head / p.group, first);
    fetch<Tile::kKeys, kThreads>(from, p.v.of_token, p.keys - first, to, thread);
  }

  // Of all warpgroups, each one's by itself.
  __device__ static void fetch_queries(const Params& p, const Place& at, unsigned char* to) {
    const unsigned group = threadIdx.x / 128;
    const unsigned first = at.first + group * 64;
    const unsigned exist = first < p.queries ? p.queries - first : 0;
    const T* const from = Plain::of(p.q, at.batch, at.head, exist > 0 ? first : at.first);
    fetch<64, 128>(from, p.q.of_token, exist, to + group * Tile::kGroupBytes, threadIdx.x % 128);
  }
};

}  // namespace onnxopt
