// The launches of a mixture of experts: y[t] = sum over the choices c of f(x[t] A[e]) B[e] * factor[t, c], e = ids[t,
// c].
//
//   route (only for many rows)  ->  first product, with f behind it  ->  second product  ->  join
//
// Op is generated: Op::Stored and Op::Factor, the sizes kExperts, kChosen, kColumns and kHidden, kGated (whether f
// takes two halves of the first product), and f, Op::apply(x) or Op::apply(x, y).
#pragma once

#include "device/approximate.cuh"
#include "device/scalar.cuh"
#include "device/vector.cuh"
#include "experts/product.cuh"
#include "experts/rows.cuh"

namespace onnxopt {

template <typename Op>
struct Experts {
  using T = typename Op::Stored;

  // Blocks of a tile of rows: each has some columns.
  template <typename Tile, bool kSecond>
  static constexpr int column_blocks() {
    constexpr int width = kSecond ? Op::kColumns : Op::kHidden;
    constexpr int step = !kSecond && Op::kGated ? Tile::kHalf : Tile::kColumns;
    return (width + step - 1) / step;
  }

  template <typename Tile, bool kSecond>
  __device__ static ExpertsColumns columns_of(int block) {
    if constexpr (!kSecond && Op::kGated) {
      const int first = block * Tile::kHalf, rest = Op::kHidden - first;
      return {first, Op::kHidden + first, rest, rest};
    } else {
      const int first = block * Tile::kColumns, rest = (kSecond ? Op::kColumns : Op::kHidden) - first;
      return {first, first + Tile::kHalf, rest, rest - Tile::kHalf};
    }
  }

  // rows: `count` of the expert.
  template <typename Tile, bool kSecond, typename Wait>
  __device__ static void multiply(const ExpertsParams& p, int expert, const int* rows, int count, int block,
                                  const Wait& wait) {
    constexpr int kDepth = kSecond ? Op::kHidden : Op::kColumns;
    constexpr int kWidth = kSecond ? Op::kColumns : (Op::kGated ? 2 : 1) * Op::kHidden;
    __shared__ int sources[Tile::kRows];
    for (int k = threadIdx.x; k < count; k += Tile::kThreads) sources[k] = kSecond ? rows[k] : rows[k] / Op::kChosen;
    __syncthreads();
    ExpertsProduct<Tile, kDepth, kWidth> product;
    product.weight = static_cast<const T*>(p.weight[kSecond]) + static_cast<int64_t>(expert) * kDepth * kWidth;
    product.x = static_cast<const T*>(kSecond ? p.between : p.x);
    product.sources = sources;
    product.columns = columns_of<Tile, kSecond>(block);
    product.count = count;
    product.run(wait);
    constexpr int kStored = kSecond ? Op::kColumns : Op::kHidden;
    T* const results = static_cast<T*>(kSecond ? p.results : p.between);
    product.each([&](int row, int column, float low, float high) {
      T* const to = results + static_cast<int64_t>(rows[row]) * kStored + product.columns.first + column;
      if constexpr (kSecond) {
        if (column < product.columns.of_first) to[0] = Narrow<T>::from(low);
        if (column < product.columns.of_second) to[Tile::kHalf] = Narrow<T>::from(high);
      } else if constexpr (Op::kGated) {
        if (column < product.columns.of_first) to[0] = Narrow<T>::from(Op::apply(low, high));
      } else {
        if (column < product.columns.of_first) to[0] = Narrow<T>::from(Op::apply(low));
        if (column < product.columns.of_second) to[Tile::kHalf] = Narrow<T>::from(Op::apply(high));
      }
    });
  }

  // Of few rows: a block finds its expert's rows by itself. What the kernel ahead of the first product writes are x,
  // ids and factors; the second product knows the ids, and reads weights before the first product has ended.
  template <typename Tile, bool kSecond>
  __device__ static void run_few(const ExpertsParams& p) {
    constexpr int kBlocks = column_blocks<Tile, kSecond>();
    __shared__ int list[kMostFewRows];
    if constexpr (!kSecond) begin_early();
    const auto wait = [] {
      if constexpr (kSecond) begin_early();
    };
    const int slot = static_cast<int>(blockIdx.x) / kBlocks, block = static_cast<int>(blockIdx.x) % kBlocks;
    const ExpertRows rows = find_rows<Op::kExperts, Tile::kThreads>(p, slot, list);
    for (int begin = 0; begin < rows.count; begin += Tile::kRows) {
      multiply<Tile, kSecond>(p, rows.expert, list + begin, min(Tile::kRows, rows.count - begin), block, wait);
    }
    if (rows.count == 0) wait();  // a kernel ends behind the one ahead of it
  }

  // Of many rows: `route` has found the rows of all experts. Tiles of the same columns run together, so that they share
  // the weights that the L2 cache holds.
  template <typename Tile, bool kSecond>
  __device__ static void run_many(const ExpertsParams& p) {
    if constexpr (!kSecond) begin_early();
    const auto wait = [] {
      if constexpr (kSecond) begin_early();
    };
    const int tile = static_cast<int>(blockIdx.x) % p.most_tiles, block = static_cast<int>(blockIdx.x) / p.most_tiles;
    if (tile < *p.tile_count) {
      const int* const entry = p.tiles + 3 * tile;
      multiply<Tile, kSecond>(p, entry[0], p.order + entry[1], entry[2], block, wait);
    } else {
      wait();
    }
  }

  template <int kRows, int kThreads>
  __device__ static void run_route(const ExpertsParams& p) {
    begin_early();
    route<Op::kExperts, kRows, kThreads>(p);
  }

  // A thread adds one vector of a token's results, choice by choice.
  template <int kThreads>
  __device__ static void run_join(const ExpertsParams& p) {
    constexpr int kVector = 16 / sizeof(T);
    constexpr int kOfRow = Op::kColumns / kVector;
    begin_early();
    const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    const int64_t token = at / kOfRow;
    const int column = static_cast<int>(at % kOfRow) * kVector;
    if (token * Op::kChosen >= p.rows) return;
    float sum[kVector] = {};
#pragma unroll
    for (int c = 0; c < Op::kChosen; ++c) {
      const int64_t row = token * Op::kChosen + c;
      const float factor = widen(static_cast<const typename Op::Factor*>(p.factors)[row]);
      const auto part = load_vector<T, kVector>(static_cast<const T*>(p.results) + row * Op::kColumns + column);
#pragma unroll
      for (int k = 0; k < kVector; ++k) sum[k] = ::fmaf(widen(part.at[k]), factor, sum[k]);
    }
    Vector<T, kVector> y;
#pragma unroll
    for (int k = 0; k < kVector; ++k) y.at[k] = Narrow<T>::from(sum[k]);
    store_vector(static_cast<T*>(p.y) + token * Op::kColumns + column, y);
  }
};

}  // namespace onnxopt
