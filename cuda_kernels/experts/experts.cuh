// The launches of a mixture of experts: y[t] = sum over the choices c of f(x[t] A[e]) B[e] * factor[t, c], e = ids[t,
// c].
//
//   route (only for many rows)  ->  first product  ->  f  ->  second product  ->  join
//
// Where the depth of the first product is not split, f stands behind it in the same launch.
//
// Op is generated: Op::Stored and Op::Factor, the sizes kExperts, kChosen, kColumns and kHidden, kGated (whether f
// takes two halves of the first product), kInterleaved (whether these are its even and its odd columns), kFirstBiased
// and kSecondBiased (whether the products have a bias), and f, Op::apply(x) or Op::apply(x, y).
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
    if constexpr (!kSecond && Op::kInterleaved) {
      const int first = block * Tile::kColumns, rest = 2 * Op::kHidden - first;
      return {first, first + Tile::kHalf, rest, rest - Tile::kHalf};
    } else if constexpr (!kSecond && Op::kGated) {
      const int first = block * Tile::kHalf, rest = Op::kHidden - first;
      return {first, Op::kHidden + first, rest, rest};
    } else {
      const int first = block * Tile::kColumns, rest = (kSecond ? Op::kColumns : Op::kHidden) - first;
      return {first, first + Tile::kHalf, rest, rest - Tile::kHalf};
    }
  }

  template <bool kSecond>
  static constexpr int width() {
    return kSecond ? Op::kColumns : (Op::kGated ? 2 : 1) * Op::kHidden;
  }

  // What is added to a column of a product of an expert.
  template <bool kSecond>
  __device__ static float bias(const ExpertsParams& p, int expert, int column) {
    if constexpr (kSecond ? Op::kSecondBiased : Op::kFirstBiased) {
      return widen(static_cast<const T*>(p.bias[kSecond])[static_cast<int64_t>(expert) * width<kSecond>() + column]);
    } else {
      return 0.0f;
    }
  }

  // Keeps what a block has of the first product, whose depth is not split: f of it.
  template <typename Tile, typename Product>
  __device__ static void keep_activated(const ExpertsParams& p, const Product& product, int expert, const int* rows,
                                        const ExpertsColumns& columns) {
    T* const between = static_cast<T*>(p.between);
    const auto keep = [&](int row, int column, float result) {
      between[static_cast<int64_t>(rows[row]) * Op::kHidden + column] = Narrow<T>::from(result);
    };
    const auto biased = [&](float sum, int column) { return sum + bias<false>(p, expert, column); };
    if constexpr (Op::kInterleaved) {
      product.each_pair([&](int row, int column, float even, float odd, bool low) {
        if (column >= (low ? columns.of_first : columns.of_second)) return;
        const int at = (low ? columns.first : columns.second) + column;
        keep(row, at / 2, Op::apply(biased(even, at), biased(odd, at + 1)));
      });
    } else {
      product.each([&](int row, int column, float low, float high) {
        const int first = columns.first + column, second = columns.second + column;
        if constexpr (Op::kGated) {
          if (column < columns.of_first) keep(row, first, Op::apply(biased(low, first), biased(high, second)));
        } else {
          if (column < columns.of_first) keep(row, first, Op::apply(biased(low, first)));
          if (column < columns.of_second) keep(row, second, Op::apply(biased(high, second)));
        }
      });
    }
  }

  // Keeps the sums of a part of a product's depth.
  template <bool kSecond, typename Product>
  __device__ static void keep_sums(const ExpertsParams& p, const Product& product, const int* rows,
                                   const ExpertsColumns& columns, int split) {
    float* const sums = p.sums + static_cast<int64_t>(split) * p.rows * width<kSecond>();
    product.each([&](int row, int column, float low, float high) {
      float* const to = sums + static_cast<int64_t>(rows[row]) * width<kSecond>() + column;
      if (column < columns.of_first) to[columns.first] = low;
      if (column < columns.of_second) to[columns.second] = high;
    });
  }

  // rows: `count` of the expert. split: which part of the depth.
  template <typename Tile, bool kSecond, typename Wait>
  __device__ static void multiply(const ExpertsParams& p, int expert, const int* rows, int count, int block, int split,
                                  const Wait& wait) {
    constexpr int kDepth = kSecond ? Op::kHidden : Op::kColumns;
    using Product = ExpertsProduct<Tile, kDepth, width<kSecond>()>;
    __shared__ int sources[Tile::kRows];
    for (int k = threadIdx.x; k < count; k += Tile::kThreads) sources[k] = kSecond ? rows[k] : rows[k] / Op::kChosen;
    __syncthreads();
    const T* const weight =
        static_cast<const T*>(p.weight[kSecond]) + static_cast<int64_t>(expert) * kDepth * width<kSecond>();
    const ExpertsColumns columns = columns_of<Tile, kSecond>(block);
    const int splits = p.splits[kSecond], steps = (Product::kSteps + splits - 1) / splits;
    const int first = min(split * steps, Product::kSteps), end = min(first + steps, Product::kSteps);
    Product product(weight, static_cast<const T*>(kSecond ? p.between : p.x), sources, count, columns, first, end);
    product.run(wait);
    if constexpr (kSecond) {
      keep_sums<true>(p, product, rows, columns, split);
    } else if (splits > 1) {
      keep_sums<false>(p, product, rows, columns, split);
    } else {
      keep_activated<Tile>(p, product, expert, rows, columns);
    }
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
    const int block = static_cast<int>(blockIdx.x) % kBlocks, rest = static_cast<int>(blockIdx.x) / kBlocks;
    const int split = rest % p.splits[kSecond], slot = rest / p.splits[kSecond];
    const ExpertRows rows = find_rows<Op::kExperts, Tile::kThreads>(p, slot, list);
    for (int begin = 0; begin < rows.count; begin += Tile::kRows) {
      multiply<Tile, kSecond>(p, rows.expert, list + begin, min(Tile::kRows, rows.count - begin), block, split, wait);
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
    const int tile = static_cast<int>(blockIdx.x) % p.max_tiles, rest = static_cast<int>(blockIdx.x) / p.max_tiles;
    const int split = rest % p.splits[kSecond], block = rest / p.splits[kSecond];
    if (tile < *p.tile_count) {
      const int* const entry = p.tiles + 3 * tile;
      multiply<Tile, kSecond>(p, entry[0], p.order + entry[1], entry[2], block, split, wait);
    } else {
      wait();
    }
  }

  // f, where the depth of the first product is split: a thread has one element of a row.
  template <int kThreads>
  __device__ static void run_activate(const ExpertsParams& p) {
    begin_early();
    const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    const int64_t row = at / Op::kHidden;
    if (row >= p.rows) return;
    const int column = static_cast<int>(at % Op::kHidden);
    const int first = Op::kInterleaved ? 2 * column : column;
    const int second = Op::kInterleaved ? first + 1 : Op::kHidden + column;
    const float* const sums = p.sums + row * width<false>();
    const int64_t step = static_cast<int64_t>(p.rows) * width<false>();
    const int expert = Op::kFirstBiased ? expert_of<Op::kExperts>(p, static_cast<int>(row)) : 0;
    float low = bias<false>(p, expert, first);
    float high = Op::kGated ? bias<false>(p, expert, second) : 0.0f;
#pragma unroll 4
    for (int split = 0; split < p.splits[0]; ++split) {
      low += sums[split * step + first];
      if constexpr (Op::kGated) high += sums[split * step + second];
    }
    if constexpr (Op::kGated) {
      static_cast<T*>(p.between)[at] = Narrow<T>::from(Op::apply(low, high));
    } else {
      static_cast<T*>(p.between)[at] = Narrow<T>::from(Op::apply(low));
    }
  }

  template <int kRows, int kThreads>
  __device__ static void run_route(const ExpertsParams& p) {
    begin_early();
    route<Op::kExperts, kRows, kThreads>(p);
  }

  // A thread adds some neighbouring elements of a token's rows, each row's parts first, choice by choice.
  template <int kThreads>
  __device__ static void run_join(const ExpertsParams& p) {
    constexpr int kVector = 4;
    constexpr int kOfRow = Op::kColumns / kVector;
    begin_early();
    const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    const int64_t token = at / kOfRow;
    const int column = static_cast<int>(at % kOfRow) * kVector;
    if (token * Op::kChosen >= p.rows) return;
    const int64_t step = static_cast<int64_t>(p.rows) * Op::kColumns;
    float sum[kVector] = {};
#pragma unroll
    for (int c = 0; c < Op::kChosen; ++c) {
      const int64_t row = token * Op::kChosen + c;
      const float factor = widen(static_cast<const typename Op::Factor*>(p.factors)[row]);
      const float* const parts = p.sums + row * Op::kColumns + column;
      float whole[kVector] = {};
#pragma unroll 4
      for (int split = 0; split < p.splits[1]; ++split) {
        const auto part = load_vector<float, kVector>(parts + split * step);
#pragma unroll
        for (int k = 0; k < kVector; ++k) whole[k] += part.at[k];
      }
      const int expert = Op::kSecondBiased ? expert_of<Op::kExperts>(p, static_cast<int>(row)) : 0;
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        sum[k] = ::fmaf(whole[k] + bias<true>(p, expert, column + k), factor, sum[k]);
      }
    }
    Vector<T, kVector> y;
#pragma unroll
    for (int k = 0; k < kVector; ++k) y.at[k] = Narrow<T>::from(sum[k]);
    store_vector(static_cast<T*>(p.y) + token * Op::kColumns + column, y);
  }
};

}  // namespace onnxopt
