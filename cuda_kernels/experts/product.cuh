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
#include "device/shuffle.cuh"
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
  static constexpr bool kWhole = kDepthOfAll % Tile::kDepth == 0;
  static constexpr int kOfWeightRow = Tile::kColumns / Tile::kVector;  // accesses
  static constexpr int kOfRow = Tile::kDepth / Tile::kVector;
  static constexpr int kWeightRows = Tile::kThreads / kOfWeightRow;  // that all threads bring at once
  static constexpr int kRowsAtOnce = Tile::kThreads / kOfRow;
  static constexpr int kLoads = (Tile::kRows + kRowsAtOnce - 1) / kRowsAtOnce;
  static_assert(kDepthOfAll % Tile::kVector == 0 && kWidth % Tile::kVector == 0, "rows are whole accesses");
  static_assert(Tile::kThreads % kOfWeightRow == 0 && Tile::kDepth % kWeightRows == 0, "every thread has one column");
  static_assert(Tile::kThreads % kOfRow == 0, "every thread has one part of a row");

  const T* weight;     // where this thread's access of the next step lies
  const T* x[kLoads];  // the same of rows
  bool has_column;
  bool has_row[kLoads];
  int next;                                              // step whose weight is brought next
  int last;                                              // behind the last step
  int count;                                             // rows of the tile that exist
  float sum[2][Tile::kColumnTiles][Tile::kRowTiles][4];  // of each half

  // sources: the row of `rows` of each row of the tile. Steps from `first` to before `end` are summed.
  __device__ ExpertsProduct(const T* weights, const T* rows, const int* sources, int rows_of_tile,
                            const ExpertsColumns& columns, int first, int end)
      : next(first), last(end), count(rows_of_tile) {
    const int column = static_cast<int>(threadIdx.x) % kOfWeightRow * Tile::kVector;
    const bool low = column < Tile::kHalf;
    const int inside = low ? column : column - Tile::kHalf;
    has_column = inside < (low ? columns.of_first : columns.of_second);
    const int64_t depth = first * Tile::kDepth + static_cast<int>(threadIdx.x) / kOfWeightRow;
    weight = weights + depth * kWidth + (has_column ? (low ? columns.first : columns.second) + inside : 0);
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int row = static_cast<int>(threadIdx.x) / kOfRow + k * kRowsAtOnce;
      has_row[k] = row < count;
      x[k] = rows + (has_row[k] ? static_cast<int64_t>(sources[row]) * kDepthOfAll : 0) + first * Tile::kDepth +
             static_cast<int>(threadIdx.x) % kOfRow * Tile::kVector;
    }
  }

  __device__ static T* stage(int step) {
    return reinterpret_cast<T*>(dynamic_shared()) + step % Tile::kStages * Tile::kStageElements;
  }

  // Of step `next`, which is the one behind it afterwards.
  __device__ void load_weight() {
    const int row = static_cast<int>(threadIdx.x) / kOfWeightRow;
    T* const to = stage(next) + row * Tile::kWeightPitch + static_cast<int>(threadIdx.x) % kOfWeightRow * Tile::kVector;
#pragma unroll
    for (int k = 0; k < Tile::kDepth; k += kWeightRows) {
      const bool exists = has_column && (kWhole || next * Tile::kDepth + row + k < kDepthOfAll);
      copy_or_zero_async<16>(to + k * Tile::kWeightPitch, exists ? weight + static_cast<int64_t>(k) * kWidth : weight,
                             exists);
    }
    weight += static_cast<int64_t>(Tile::kDepth) * kWidth;
    ++next;
  }

  // Of a step; each is asked for once, in their order.
  __device__ void load_rows(int step) {
    const int column = static_cast<int>(threadIdx.x) % kOfRow * Tile::kVector;
    const int first = static_cast<int>(threadIdx.x) / kOfRow;
    T* const to = stage(step) + Tile::kWeightElements + first * Tile::kPitch + column;
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      if (Tile::kRows % kRowsAtOnce != 0 && first + k * kRowsAtOnce >= Tile::kRows) continue;
      const bool exists = has_row[k] && (kWhole || step * Tile::kDepth + column < kDepthOfAll);
      copy_or_zero_async<16>(to + k * kRowsAtOnce * Tile::kPitch, x[k], exists);
      x[k] += Tile::kDepth;
    }
  }

  __device__ static int warp_columns() { return threadIdx.x / 32 % Tile::kWarpsOfColumns * 16 * Tile::kColumnTiles; }
  __device__ static int warp_rows() { return threadIdx.x / 32 / Tile::kWarpsOfColumns * Tile::kRowTiles * 8; }

  // kFull: all rows of the tile exist.
  template <bool kFull>
  __device__ void multiply_tiles(const T* weights, const T* rows) {
    const int lane = threadIdx.x % 32, matrix = lane / 8, row = lane % 8;
    const int tiles = (count - warp_rows() + 7) / 8;  // that hold rows, may be none
    const T* const left = weights + (matrix / 2 * 8 + row) * Tile::kWeightPitch + warp_columns() + matrix % 2 * 8;
    const T* const right = rows + (warp_rows() + matrix / 2 * 8 + row) * Tile::kPitch + matrix % 2 * 8;
#pragma unroll
    for (int depth = 0; depth < Tile::kDepth; depth += 16) {
      uint32_t a[2][Tile::kColumnTiles][4];
#pragma unroll
      for (int c = 0; c < Tile::kColumnTiles; ++c) {
        const T* const first = left + depth * Tile::kWeightPitch + c * 16;
        load_matrices_transposed(a[0][c], shared_address(first));
        load_matrices_transposed(a[1][c], shared_address(first + Tile::kHalf));
      }
#pragma unroll
      for (int tile = 0; tile < Tile::kRowTiles; tile += 2) {
        if (!kFull && tile >= tiles) continue;
        uint32_t b[4];
        load_matrices(b, shared_address(right + tile * 8 * Tile::kPitch + depth));
#pragma unroll
        for (int k = 0; k < 2 * Tile::kColumnTiles; ++k) {
          auto& sums = sum[k % 2][k / 2];
          Product<T>::add(sums[tile], a[k % 2][k / 2], b[0], b[1], sums[tile]);
          Product<T>::add(sums[tile + 1], a[k % 2][k / 2], b[2], b[3], sums[tile + 1]);
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
      float a[2][2 * Tile::kColumnTiles];
#pragma unroll
      for (int k = 0; k < 4 * Tile::kColumnTiles; ++k) {
        a[k % 2][k / 2] = widen(left[depth * Tile::kWeightPitch + k % 2 * Tile::kHalf + k / 2 * 8]);
      }
#pragma unroll
      for (int tile = 0; tile < Tile::kRowTiles; ++tile) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float b = widen(right[(tile * 8 + j) * Tile::kPitch + depth]);
#pragma unroll
          for (int k = 0; k < 4 * Tile::kColumnTiles; ++k) {
            float& to = sum[k % 2][k / 4][tile][k / 2 % 2 * 2 + j];
            to = ::fmaf(a[k % 2][k / 2], b, to);
          }
        }
      }
    }
  }

  // wait(): until the rows may be read. The weight may be read before.
  template <typename Wait>
  __device__ void run(const Wait& wait) {
#pragma unroll
    for (int k = 0; k < 2 * Tile::kColumnTiles; ++k) {
#pragma unroll
      for (int tile = 0; tile < Tile::kRowTiles; ++tile) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[k % 2][k / 2][tile][j] = 0.0f;
      }
    }
    const int first = next;
#pragma unroll
    for (int k = 0; k < Tile::kStages - 1; ++k) {
      if (first + k < last) load_weight();
    }
    wait();
#pragma unroll
    for (int k = 0; k < Tile::kStages - 1; ++k) {
      if (first + k < last) load_rows(first + k);
      end_group();
    }
#pragma unroll 1
    for (int step = first; step < last; ++step) {
      wait_for_groups<Tile::kStages - 2>();
      __syncthreads();
      if (next < last) {
        load_rows(next);
        load_weight();
      }
      end_group();
      const T* const at = stage(step);
      if constexpr (multiplies_tiles<T>()) {
        if (Tile::kRowTiles == 2 || count == Tile::kRows) {
          multiply_tiles<true>(at, at + Tile::kWeightElements);
        } else {
          multiply_tiles<false>(at, at + Tile::kWeightElements);
        }
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
    for (int tile = 0; tile < Tile::kRowTiles * Tile::kColumnTiles; ++tile) {
      const int r = tile % Tile::kRowTiles, c = tile / Tile::kRowTiles;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = warp_rows() + r * 8 + lane % 4 * 2 + j % 2;
        const int column = warp_columns() + c * 16 + lane / 4 + j / 2 * 8;
        if (row < count) store(row, column, sum[0][c][r][j], sum[1][c][r][j]);
      }
    }
  }

  // store(row of the tile, even column in a half, sum of that column, sum of the next one, whether it is the first
  // half) for every row that exists. The two sums are those of neighbouring columns, which lie in lanes four apart.
  template <typename Store>
  __device__ void each_pair(const Store& store) const {
    const int lane = threadIdx.x % 32;
    const bool even = lane / 4 % 2 == 0;
#pragma unroll
    for (int tile = 0; tile < Tile::kRowTiles * Tile::kColumnTiles; ++tile) {
      const int r = tile % Tile::kRowTiles, c = tile / Tile::kRowTiles;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = warp_rows() + r * 8 + lane % 4 * 2 + j % 2;
        const int column = warp_columns() + c * 16 + lane / 8 * 2 + j / 2 * 8;
        // Even lanes store the first half, odd ones the second.
        const float other = shuffle_xor(even ? sum[1][c][r][j] : sum[0][c][r][j], 4);
        const float first = even ? sum[0][c][r][j] : other, second = even ? other : sum[1][c][r][j];
        if (row < count) store(row, column, first, second, even);
      }
    }
  }
};

}  // namespace onnxopt
