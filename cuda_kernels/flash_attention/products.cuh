// The two products of an attention on the matrix units: scores of a warp's queries, and sums of weighted values.
#pragma once

#include "device/matrix_words.cuh"
#include "flash_attention/product.cuh"
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
  static constexpr int kKeyRow = Tile::kPitch * Tile::kBytes;
  static constexpr int kHeld = Tile::kHoldsQueries ? Tile::kSteps + 1 : 1;

  using Left = FlashOperand<T, Tile::kExact, 4>;
  using Right = FlashOperand<T, Tile::kExact, 2>;
  using Scores = FlashScores<Tile>;

  struct Queries {  // of a warp, as products take them
    Left at[kBands][kHeld];
  };

  __device__ static uint32_t row_of_warp(uint32_t queries) {
    const int lane = threadIdx.x % 32;
    const int warp = kSameQueries ? 0 : threadIdx.x / 32;
    return queries + (warp * 16 + lane % 16) * Tile::kQueryPitch * Tile::kBytes;
  }

  __device__ static Left load_step(uint32_t row, int step) {
    uint32_t a[4] = {};
    if (Tile::kOdd && step == Tile::kSteps) {
      uint32_t half[2];
      load_matrices(half, row + step * 32);
      a[0] = half[0];
      a[1] = half[1];
    } else {
      load_matrices(a, row + step * 32 + threadIdx.x % 32 / 16 * 16);
    }
    return Left::of(a);
  }

  __device__ static void hold(uint32_t queries, Queries& held) {
    if constexpr (Tile::kHoldsQueries) {
#pragma unroll
      for (int band = 0; band < kBands; ++band) {
        const uint32_t row = row_of_warp(queries) + band * Tile::kBandBytes;
#pragma unroll
        for (int step = 0; step < Tile::kSteps + Tile::kOdd; ++step) held.at[band][step] = load_step(row, step);
      }
    }
  }

  // Scores of the warp's queries and the tile's keys, without the scale. kMore: they are added to s.
  template <bool kMore = false>
  __device__ static void score(const Queries& held, uint32_t queries, uint32_t keys, Scores (&s)[kBands]) {
    const int lane = threadIdx.x % 32;
    const uint32_t row = keys + (lane / 16 * 8 + lane % 8) * kKeyRow + lane / 8 % 2 * 16;
    const uint32_t odd_row = keys + lane % 16 * kKeyRow;
    if constexpr (!kMore) {
#pragma unroll
      for (int band = 0; band < kBands; ++band) s[band] = {};
    }
#pragma unroll
    for (int step = 0; step < Tile::kSteps + Tile::kOdd; ++step) {
      Left a[kBands];
#pragma unroll
      for (int band = 0; band < kBands; ++band) {
        if constexpr (Tile::kHoldsQueries) {
          a[band] = held.at[band][step];
        } else {
          a[band] = load_step(row_of_warp(queries) + band * Tile::kBandBytes, step);
        }
      }
#pragma unroll
      for (int pair = 0; pair < kKeyTiles / 2; ++pair) {
        uint32_t words[4] = {};
        const bool odd = Tile::kOdd && step == Tile::kSteps;
        if (odd) {
          uint32_t half[2];
          load_matrices(half, odd_row + pair * 16 * kKeyRow + step * 32);
          words[0] = half[0];
          words[1] = half[1];
        } else {
          load_matrices(words, row + pair * 16 * kKeyRow + step * 32);
        }
        const auto b = FlashOperand<T, Tile::kExact, 4>::of(words);
#pragma unroll
        for (int band = 0; band < kBands; ++band) {
          float (&first)[4] = s[band].at[2 * pair];
          float (&second)[4] = s[band].at[2 * pair + 1];
          if (!odd) {
            add_product(first, a[band], b, 0);
            add_product(second, a[band], b, 2);
          } else if constexpr (Tile::kOdd) {
            add_half_product(first, a[band], b, 0);
            add_half_product(second, a[band], b, 1);
          }
        }
      }
    }
  }

  // Adds the weighted values of a tile to the y of the bands.
  template <typename Rows>
  __device__ static void add_values(const Scores (&s)[kBands], uint32_t values, Rows (&rows)[kBands]) {
    if constexpr (Tile::kBytes == 4) {
      add_float32_values(s, values, rows);
    } else {
      add_narrow_values(s, values, rows);
    }
  }

  // Columns 2 c and 2 c + 1 of a lane's scores are columns c and c + 4 of the left operand, and so are the rows of the
  // right one.
  template <typename Rows>
  __device__ static void add_float32_values(const Scores (&s)[kBands], uint32_t values, Rows (&rows)[kBands]) {
    constexpr int kRow = Tile::kValuePitch * Tile::kBytes;
    const int lane = threadIdx.x % 32;
    const uint32_t place = values + lane % 4 * 2 * kRow + lane / 4 * Tile::kBytes;
    if constexpr (Tile::kExact) {  // the matrix units cut off sums: those of a tile of keys begin at zero
#pragma unroll
      for (int tile = 0; tile < Tile::kTiles; ++tile) {
        float sums[kBands][4] = {};
#pragma unroll
        for (int step = 0; step < kKeyTiles; ++step) {
          const Right b = values_at(place + step * 8 * kRow + tile * 8 * Tile::kBytes, kRow);
#pragma unroll
          for (int band = 0; band < kBands; ++band) add_product(sums[band], weights_of(s[band].at[step]), b, 0);
        }
#pragma unroll
        for (int band = 0; band < kBands; ++band) {
#pragma unroll
          for (int e = 0; e < 4; ++e) rows[band].y[tile][e] += sums[band][e];
        }
      }
      return;
    }
#pragma unroll
    for (int step = 0; step < kKeyTiles; ++step) {
      Left a[kBands];
#pragma unroll
      for (int band = 0; band < kBands; ++band) a[band] = weights_of(s[band].at[step]);
#pragma unroll
      for (int tile = 0; tile < Tile::kTiles; ++tile) {
        const Right b = values_at(place + step * 8 * kRow + tile * 8 * Tile::kBytes, kRow);
#pragma unroll
        for (int band = 0; band < kBands; ++band) add_product(rows[band].y[tile], a[band], b, 0);
      }
    }
  }

  __device__ static Left weights_of(const float (&s)[4]) {
    return Left::of({__float_as_uint(s[0]), __float_as_uint(s[2]), __float_as_uint(s[1]), __float_as_uint(s[3])});
  }

  __device__ static Right values_at(uint32_t place, uint32_t row) {
    return Right::of({load_word(place), load_word(place + row)});
  }

  template <typename Rows>
  __device__ static void add_narrow_values(const Scores (&s)[kBands], uint32_t values, Rows (&rows)[kBands]) {
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
