// The two products of an attention on the matrix units: scores of a warp's queries, and sums of weighted values.
#pragma once

#include "device/matrix_words.cuh"
#include "flash_attention/tile.cuh"

namespace onnxopt {

// Of 16 queries of a warp and a tile's keys: a lane has those of queries lane / 4 and that plus 8.
template <typename Tile>
struct FlashScores {
  float at[Tile::kKeyTiles][4];

  // The key of a tile that at[j][e] and at[j][2 + e] belong to, of a lane.
  __device__ static int key(int j, int e) {
    constexpr int kMatrices = Tile::kRun / 2;
    return j / kMatrices * (4 * Tile::kRun) + threadIdx.x % 4 * Tile::kRun + j % kMatrices * 2 + e;
  }
};

// kSameQueries: all warps have the same ones.
template <typename T, typename Tile, bool kSameQueries = false>
struct FlashProducts {
  static constexpr int kKeyTiles = Tile::kKeyTiles;
  static constexpr int kBands = Tile::kBands;
  static constexpr int kHeld = Tile::kHoldsQueries ? Tile::kSteps + 1 : 1;

  struct Queries {  // of a warp, as products take them
    uint32_t at[kBands][kHeld][4];
  };

  using Scores = FlashScores<Tile>;

  __device__ static uint32_t row_of_warp(uint32_t queries) {
    const int lane = threadIdx.x % 32;
    const int warp = kSameQueries ? 0 : threadIdx.x / 32;
    return queries + (warp * 16 + lane % 16) * Tile::kQueryPitch * 2;
  }

  __device__ static void load_step(uint32_t (&a)[4], uint32_t row, int step) {
    if (Tile::kOdd && step == Tile::kSteps) {
      uint32_t half[2];
      load_matrices(half, row + step * 32);
      a[0] = half[0];
      a[1] = half[1];
    } else {
      load_matrices(a, row + step * 32 + threadIdx.x % 32 / 16 * 16);
    }
  }

  __device__ static void hold(uint32_t queries, Queries& held) {
    if constexpr (Tile::kHoldsQueries) {
#pragma unroll
      for (int band = 0; band < kBands; ++band) {
        const uint32_t row = row_of_warp(queries) + band * Tile::kBandBytes;
#pragma unroll
        for (int step = 0; step < Tile::kSteps + Tile::kOdd; ++step) load_step(held.at[band][step], row, step);
      }
    }
  }

  // Scores of the warp's queries and the tile's keys, without the scale. kMore: they are added to s.
  template <bool kMore = false>
  __device__ static void score(const Queries& held, uint32_t queries, uint32_t keys, Scores (&s)[kBands]) {
    const int lane = threadIdx.x % 32;
    const uint32_t row = keys + ((lane / 16 * 8 + lane % 8) * Tile::kPitch + lane / 8 % 2 * 8) * 2;
    const uint32_t odd_row = keys + lane % 16 * Tile::kPitch * 2;
    if constexpr (!kMore) {
#pragma unroll
      for (int band = 0; band < kBands; ++band) s[band] = {};
    }
#pragma unroll
    for (int step = 0; step < Tile::kSteps + Tile::kOdd; ++step) {
      uint32_t a[kBands][4];
#pragma unroll
      for (int band = 0; band < kBands; ++band) {
        if constexpr (Tile::kHoldsQueries) {
#pragma unroll
          for (int e = 0; e < 4; ++e) a[band][e] = held.at[band][step][e];
        } else {
          load_step(a[band], row_of_warp(queries) + band * Tile::kBandBytes, step);
        }
      }
#pragma unroll
      for (int pair = 0; pair < kKeyTiles / 2; ++pair) {
        uint32_t b[4];
        const bool odd = Tile::kOdd && step == Tile::kSteps;
        if (odd) {
          uint32_t half[2];
          load_matrices(half, odd_row + (pair * 16 * Tile::kPitch + step * 16) * 2);
          b[0] = half[0];
          b[1] = half[1];
        } else {
          load_matrices(b, row + (pair * 16 * Tile::kPitch + step * 16) * 2);
        }
#pragma unroll
        for (int band = 0; band < kBands; ++band) {
          float (&first)[4] = s[band].at[2 * pair];
          float (&second)[4] = s[band].at[2 * pair + 1];
          if (odd) {
            const uint32_t half[2] = {a[band][0], a[band][1]};
            Product<T>::add(first, half, b[0], first);
            Product<T>::add(second, half, b[1], second);
          } else {
            Product<T>::add(first, a[band], b[0], b[1], first);
            Product<T>::add(second, a[band], b[2], b[3], second);
          }
        }
      }
    }
  }

  // Adds the weighted values of a tile to the y of the bands.
  template <typename Rows>
  __device__ static void add_values(const Scores (&s)[kBands], uint32_t values, Rows (&rows)[kBands]) {
    const int lane = threadIdx.x % 32;
    const uint32_t row = values + lane % 16 * Tile::kValuePitch * 2;
#pragma unroll
    for (int step = 0; step < kKeyTiles / 2; ++step) {
      uint32_t a[kBands][4];
#pragma unroll
      for (int band = 0; band < kBands; ++band) {
        const float (&first)[4] = s[band].at[2 * step];
        const float (&second)[4] = s[band].at[2 * step + 1];
        a[band][0] = narrow_pair<T>(first[0], first[1]);
        a[band][1] = narrow_pair<T>(first[2], first[3]);
        a[band][2] = narrow_pair<T>(second[0], second[1]);
        a[band][3] = narrow_pair<T>(second[2], second[3]);
      }
#pragma unroll
      for (int pair = 0; pair < Tile::kTiles / 2; ++pair) {
        uint32_t b[4];
        load_matrices_transposed(b, row + (step * 16 * Tile::kValuePitch + pair * 16 + lane / 16 * 8) * 2);
#pragma unroll
        for (int band = 0; band < kBands; ++band) {
          auto& y = rows[band].y;
          Product<T>::add(y[2 * pair], a[band], b[0], b[1], y[2 * pair]);
          Product<T>::add(y[2 * pair + 1], a[band], b[2], b[3], y[2 * pair + 1]);
        }
      }
      if constexpr (Tile::kTiles % 2 != 0) {
        constexpr int kLast = Tile::kTiles - 1;
        uint32_t b[2];
        load_matrices_transposed(b, row + (step * 16 * Tile::kValuePitch + kLast * 8) * 2);
#pragma unroll
        for (int band = 0; band < kBands; ++band) {
          Product<T>::add(rows[band].y[kLast], a[band], b[0], b[1], rows[band].y[kLast]);
        }
      }
    }
  }
};

}  // namespace onnxopt
