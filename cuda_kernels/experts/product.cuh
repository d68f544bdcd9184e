// The product of one expert's weight with some of its rows: sums[column][row] over the weight's depth.
//
// The weight lies as [depth, columns]. Its columns are the left operand of tensor cores, rows the right one. Where the
// GPU has no products of the dtype (and for float32, which would lose bits), lanes compute the same sums one by one.
#pragma once

#include "device/copy_async.cuh"
#include "device/dtypes.cuh"
#include "device/dynamic_shared.cuh"
#include "device/early_launch.cuh"
#include "device/matrix_words.cuh"
#include "experts/tile.cuh"

namespace onnxopt {

// Has 16 bits and tensor cores for them.
template <typename T>
__device__ constexpr bool multiplies_tiles() {
  if constexpr (sizeof(T) == 2) {
    return has_products<T>();
  } else {
    return false;
  }
}

// Where the columns of a block lie: two runs of Tile::kHalf, at `first` and `second` of a row, of which so many exist.
struct ExpertsColumns {
  int first;
  int second;
  int of_first;
  int of_second;
};

template <typename Tile, int kDepthOfAll, int kWidth>
struct ExpertsProduct {
  using T = typename Tile::T;
  static constexpr int kSteps = (kDepthOfAll + Tile::kDepth - 1) / Tile::kDepth;
  static_assert(kDepthOfAll % Tile::kVector == 0 && kWidth % Tile::kVector == 0, "rows are whole accesses");

  const T* weight;  // of the expert
  const T* x;
  const int* sources;  // the row of x of each row of the tile
  ExpertsColumns columns;
  int count;  // rows of the tile that exist
  float sum[2][Tile::kRowTiles][4];

  __device__ static T* stage(int step) {
    return reinterpret_cast<T*>(dynamic_shared()) + step % Tile::kStages * Tile::kStageElements;
  }

  __device__ void load_weight(int step) const {
    constexpr int kOfRow = Tile::kColumns / Tile::kVector;
    T* const to = stage(step);
#pragma unroll
    for (int k = threadIdx.x; k < Tile::kDepth * kOfRow; k += Tile::kThreads) {
      const int row = k / kOfRow, column = k % kOfRow * Tile::kVector;
      const bool low = column < Tile::kHalf;
      const int inside = low ? column : column - Tile::kHalf;
      const int depth = step * Tile::kDepth + row;
      const bool exists = depth < kDepthOfAll && inside < (low ? columns.of_first : columns.of_second);
      const T* const from =
          weight + static_cast<int64_t>(depth) * kWidth + (low ? columns.first : columns.second) + inside;
      copy_or_zero_async<16>(to + row * Tile::kWeightPitch + column, exists ? from : weight, exists);
    }
  }

  __device__ void load_rows(int step) const {
    constexpr int kOfRow = Tile::kDepth / Tile::kVector;
    T* const to = stage(step) + Tile::kWeightElements;
#pragma unroll
    for (int k = threadIdx.x; k < Tile::kRows * kOfRow; k += Tile::kThreads) {
      const int row = k / kOfRow, column = k % kOfRow * Tile::kVector;
      const int depth = step * Tile::kDepth + column;
      const bool exists = row < count && depth < kDepthOfAll;
      const T* const from = exists ? x + static_cast<int64_t>(sources[row]) * kDepthOfAll + depth : x;
      copy_or_zero_async<16>(to + row * Tile::kPitch + column, from, exists);
    }
  }

  __device__ static int warp_columns() { return threadIdx.x / 32 % Tile::kWarpsOfColumns * 16; }
  __device__ static int warp_rows() { return threadIdx.x / 32 / Tile::kWarpsOfColumns * Tile::kRowTiles * 8; }

  __device__ void multiply_tiles(const T* weights, const T* rows) {
    const int lane = threadIdx.x % 32, matrix = lane / 8, row = lane % 8;
    const int tiles = (count - warp_rows() + 7) / 8;  // that hold rows, may be none
    const T* const left = weights + (matrix / 2 * 8 + row) * Tile::kWeightPitch + warp_columns() + matrix % 2 * 8;
    const T* const right = rows + (warp_rows() + matrix / 2 * 8 + row) * Tile::kPitch + matrix % 2 * 8;
#pragma unroll
    for (int depth = 0; depth < Tile::kDepth; depth += 16) {
      uint32_t a[2][4];
      load_matrices_transposed(a[0], shared_address(left + depth * Tile::kWeightPitch));
      load_matrices_transposed(a[1], shared_address(left + depth * Tile::kWeightPitch + Tile::kHalf));
#pragma unroll
      for (int tile = 0; tile < Tile::kRowTiles; tile += 2) {
        if (tile >= tiles) continue;
        uint32_t b[4];
        load_matrices(b, shared_address(right + tile * 8 * Tile::kPitch + depth));
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          Product<T>::add(sum[k][tile], a[k], b[0], b[1], sum[k][tile]);
          Product<T>::add(sum[k][tile + 1], a[k], b[2], b[3], sum[k][tile + 1]);
        }
      }
    }
  }

  __device__ void multiply_plainly(const T* weights, const T* rows) {
    const int lane = threadIdx.x % 32;
    const T* const left = weights + warp_columns() + lane / 4;
    const T* const right = rows + (warp_rows() + lane % 4 * 2) * Tile::kPitch;
#pragma unroll 4
    for (int depth = 0; depth < Tile::kDepth; ++depth) {
      float a[2][2];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        a[k / 2][k % 2] = widen(left[depth * Tile::kWeightPitch + k / 2 * Tile::kHalf + k % 2 * 8]);
      }
#pragma unroll
      for (int tile = 0; tile < Tile::kRowTiles; ++tile) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float b = widen(right[(tile * 8 + j) * Tile::kPitch + depth]);
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            sum[k][tile][j] = ::fmaf(a[k][0], b, sum[k][tile][j]);
            sum[k][tile][2 + j] = ::fmaf(a[k][1], b, sum[k][tile][2 + j]);
          }
        }
      }
    }
  }

  // wait(): until the rows may be read. The weight may be read before.
  template <typename Wait>
  __device__ void run(const Wait& wait) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int tile = 0; tile < Tile::kRowTiles; ++tile) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[k][tile][j] = 0.0f;
      }
    }
#pragma unroll
    for (int step = 0; step < Tile::kStages - 1; ++step) {
      if (step < kSteps) load_weight(step);
    }
    wait();
#pragma unroll
    for (int step = 0; step < Tile::kStages - 1; ++step) {
      if (step < kSteps) load_rows(step);
      end_group();
    }
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) {
      wait_for_groups<Tile::kStages - 2>();
      __syncthreads();
      if (step + Tile::kStages - 1 < kSteps) {
        load_weight(step + Tile::kStages - 1);
        load_rows(step + Tile::kStages - 1);
      }
      end_group();
      const T* const at = stage(step);
      if constexpr (multiplies_tiles<T>()) {
        multiply_tiles(at, at + Tile::kWeightElements);
      } else {
        multiply_plainly(at, at + Tile::kWeightElements);
      }
    }
    __syncthreads();  // before another tile fills the stages
  }

  // store(row of the tile, column in a half, sum of the first half, sum of the second half) for every row that exists.
  template <typename Store>
  __device__ void each(const Store& store) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int tile = 0; tile < Tile::kRowTiles; ++tile) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = warp_rows() + tile * 8 + lane % 4 * 2 + j % 2;
        const int column = warp_columns() + lane / 4 + j / 2 * 8;
        if (row < count) store(row, column, sum[0][tile][j], sum[1][tile][j]);
      }
    }
  }
};

}  // namespace onnxopt
