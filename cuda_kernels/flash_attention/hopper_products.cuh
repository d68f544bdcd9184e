// The two products of an attention by warpgroups: scores of 64 queries, and sums of weighted values.
#pragma once

#include "device/products/warpgroup_products.cuh"
#include "flash_attention/hopper_tile.cuh"
#include "flash_attention/products.cuh"

namespace onnxopt {

template <typename T, typename Tile>
struct FlashHopperProducts {
  using Scores = FlashScores<Tile>;
  static constexpr int kSteps = Tile::kKeys / 16;
  static constexpr int kScoreTiles = Tile::kScoreColumns / 8;

  struct Weights {
    uint32_t at[kSteps][4];
  };

  template <int kTiles, int kAll>
  __device__ static float (&part(float (&x)[kAll][4], int first))
      [kTiles][4] { return *reinterpret_cast<float (*)[kTiles][4]>(&x[first]); }

  // Asks for the scores of the warpgroup's queries and a tile's keys, without the scale. kMore: they are added to s.
  template <bool kMore>
  __device__ static void score(uint32_t queries, uint32_t keys, Scores& s) {
    pin(s.at);
    begin_products();
#pragma unroll
    for (int column = 0; column < Tile::kKeys; column += Tile::kScoreColumns) {
#pragma unroll
      for (int step = 0; step < Tile::kDepthSteps; ++step) {
        const uint32_t within = step % 4 * 32;
        const uint64_t b = matrix_in_rows(keys + (step / 4 * Tile::kKeys + column) * Tile::kRow + within);
        auto& y = part<kScoreTiles>(s.at, column / 8);
        const uint64_t a = matrix_in_rows(queries + step / 4 * 64 * Tile::kRow + within);
        WarpgroupProduct<T, Tile::kScoreColumns>::add_shared(y, a, b, kMore || step > 0);
      }
    }
    end_products();
  }

  __device__ static void narrow(const Scores& s, Weights& weights) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float (&of)[4] = s.at[2 * step + e / 2];
        weights.at[step][e] = narrow_pair<T>(of[e % 2 * 2], of[e % 2 * 2 + 1]);
      }
    }
  }

  // Asks for the sums of weighted values.
  __device__ static void add_values(Weights& weights, uint32_t values, float (&y)[Tile::kTiles][4]) {
    pin(y);
    pin(weights.at);
    begin_products();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint64_t b = matrix_in_rows(values + step * 16 * Tile::kRow, Tile::kKeys * Tile::kRow);
      WarpgroupProduct<T, Tile::kWidth>::add(y, weights.at[step], b);
    }
    end_products();
  }
};

}  // namespace onnxopt
