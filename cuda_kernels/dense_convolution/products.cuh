// The products of a tile of a dense convolution, on the matrix units.
//
// Products of a warp are below each other, so what one of them sees through a tap is what another sees through the tap
// above or below: each row of the image comes to registers once for all of these. A group of products has one column of
// taps and 16 channels.
#pragma once

#include "dense_convolution/tile.cuh"
#include "device/matrix_words.cuh"

namespace onnxopt {

template <typename Tile>
struct DenseSums {
  float at[Tile::kProducts][Tile::kTiles][4];
};

template <typename T, typename Tile>
struct DenseProducts {
  using W = typename Tile::W;
  static constexpr int kStride = Tile::kProductRows * W::kStrideDown;  // rows of the image from product to product
  static constexpr int kRows = (Tile::kProducts - 1) * kStride + (W::kHeight - 1) * W::kDilationDown + 1;
  static constexpr int kDepths = Tile::kChannels / 16;
  static constexpr int kGroups = W::kWidth * kDepths;

  struct Weights {
    uint32_t at[W::kHeight][Tile::kTiles / 2][4];
  };

  // The product that sees a row of the warp's through a tap of a column; none below 0.
  __device__ static constexpr int product(int row, int tap) {
    const int from = row - tap * W::kDilationDown;
    return from >= 0 && from % kStride == 0 && from / kStride < Tile::kProducts ? from / kStride : -1;
  }

  // Where the lane's row of the warp's first product begins, and its row of weights.
  __device__ static uint32_t row_of_image() {
    const int lane = threadIdx.x % 32, output = lane % 16;
    const int row =
        threadIdx.x / 32 / Tile::kParts * Tile::kProducts * kStride + output / Tile::kAcross * W::kStrideDown;
    return Tile::place_of_image(row, output % Tile::kAcross * W::kStrideAcross, lane / 16);
  }
  __device__ static uint32_t row_of_weights() {
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 % Tile::kParts * Tile::kWarpFilters;
    return Tile::place_of_weights(first + lane / 16 * 8 + lane % 8, lane / 8 % 2);
  }

  __device__ static void load(uint32_t weights, int group, Weights& of) {
#pragma unroll
    for (int tap = 0; tap < W::kHeight; ++tap) {
      const int chunk = (tap * W::kWidth + group / kDepths) * Tile::kChunks + group % kDepths * 2;
#pragma unroll
      for (int j = 0; j < Tile::kTiles / 2; ++j) {
        load_matrices(of.at[tap][j], weights + Tile::place_of_weights(16 * j, chunk));
      }
    }
  }

  __device__ static void load(uint32_t image, int group, int row, uint32_t (&a)[4]) {
    const int column = group / kDepths * W::kDilationAcross;
    load_matrices(a, image + Tile::place_of_image(row, column, group % kDepths * 2));
  }

  __device__ static void multiply(uint32_t image, uint32_t weights, DenseSums<Tile>& sums) {
    image += row_of_image();
    weights += row_of_weights();
    Weights of[2];
    uint32_t a[2][4];
    load(weights, 0, of[0]);
    load(image, 0, 0, a[0]);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const bool last = row + 1 == kRows;
        if (row == kRows / 2 && group + 1 < kGroups) load(weights, group + 1, of[(group + 1) % 2]);
        if (!last || group + 1 < kGroups)
          load(image, group + last, last ? 0 : row + 1, a[(group * kRows + row + 1) % 2]);
#pragma unroll
        for (int tap = 0; tap < W::kHeight; ++tap) {
          if (product(row, tap) < 0) continue;
#pragma unroll
          for (int j = 0; j < Tile::kTiles; ++j) {
            float (&sum)[4] = sums.at[product(row, tap) < 0 ? 0 : product(row, tap)][j];
            const uint32_t (&b)[4] = of[group % 2].at[tap][j / 2];
            Product<T>::add(sum, a[(group * kRows + row) % 2], b[j % 2 * 2], b[j % 2 * 2 + 1], sum);
          }
        }
      }
    }
  }
};

}  // namespace onnxopt
