// scan_strided: running totals along rows whose elements lie `inner` apart; neighbouring threads have neighbouring
// rows.
#pragma once

#include "rowwise/body.cuh"
#include "scan/lanes.cuh"

namespace onnxopt {

// 32 threads side by side along `inner`, each with kWidth rows. kThreads / 32 of them share these rows: each has
// kVectors elements of a chunk, which lie behind each other, and chunks follow each other with the sum of those before.
template <typename Op, typename Index, int kWidth, int kVectors, int kThreads, char... kModes>
struct StridedScan {
  using B = RowBodyOf<Op, kWidth>;
  using Params = RowParams<Index, Op::Inputs::size, Op::Outputs::size>;
  using Element = typename Op::Element;
  using Total = typename Element::Partial;
  static constexpr int kShares = kThreads / kWarpLanes;
  static constexpr Index kStep = kShares * kVectors;

  const Params& params;
  const Index first;  // element of the domain
  const Index columns;
  const Index inner;
  const bool live;
  typename Op::Row row;
  typename RowBodyOf<Op, 1>::RowLoaded row_in[kWidth];

  // Column that is summed up as number p.
  __device__ Index column(Index p) const { return Op::kReverse ? columns - 1 - p : p; }

  __device__ bool has(Index p) const { return live && p < columns; }

  __device__ void load(Index begin, typename B::Loaded (&in)[kVectors]) const {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const Index k = column(begin + v);
      if (has(begin + v)) B::template load_all<~0u, kModes...>(params, first + k * inner, k, in[v]);
    }
  }

  // Totals of this share alone, and their last ones.
  __device__ void sum_up(Index begin, const typename B::Loaded (&in)[kVectors], Total (&totals)[kVectors][kWidth],
                         Total (&all)[kWidth]) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      Total sum = Total(0);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (has(begin + v)) {
          Total value;
          B::template add<Element>(value, row, in[v], row_in[j], j);
          sum = add(sum, value);
        }
        totals[v][j] = sum;
      }
      all[j] = sum;
    }
  }

  // before: this share's sums, which become those of all shares before it and `carry`; carry: then with all shares.
  __device__ static void join_shares(Total (&before)[kWidth], Total (&carry)[kWidth], int turn) {
    __shared__ Total both[2][kShares][kWidth][kWarpLanes];
    auto& parts = both[turn & 1];
    const int share = threadIdx.x / kWarpLanes;
    const int lane = threadIdx.x % kWarpLanes;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) parts[share][j][lane] = before[j];
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      Total sum = Total(0);  // of the shares alone, so that few roundings are of the whole row's size
#pragma unroll
      for (int s = 0; s < kShares; ++s) {
        if (s == share) before[j] = add(carry[j], sum);
        sum = add(sum, parts[s][j][lane]);
      }
      carry[j] = add(carry[j], sum);
    }
  }

  __device__ void run() {
    if (live) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) RowBodyOf<Op, 1>::load_row(params, first + static_cast<Index>(j), row_in[j]);
    }
    Total carry[kWidth] = {};
    typename B::Loaded next[kVectors];
    load(threadIdx.x / kWarpLanes * kVectors, next);
    int turn = 0;
#pragma unroll 1
    for (Index chunk = 0; chunk < columns; chunk += kStep, ++turn) {
      const Index begin = chunk + threadIdx.x / kWarpLanes * kVectors;
      typename B::Loaded in[kVectors];
#pragma unroll
      for (int v = 0; v < kVectors; ++v) in[v] = next[v];
      load(begin + kStep, next);  // on its way while this chunk is summed up
      Total totals[kVectors][kWidth];
      Total before[kWidth];
      sum_up(begin, in, totals, before);
      join_shares(before, carry, turn);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (has(begin + v)) store(column(begin + v), in[v], before, totals[v], v == 0 ? nullptr : totals[v - 1]);
      }
    }
  }

  // own, behind: totals of this share with the element at column k, and without it (nullptr: none).
  __device__ void store(Index k, const typename B::Loaded& in, const Total (&before)[kWidth], const Total* own,
                        const Total* behind) {
    typename B::Stored out;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      if constexpr (Op::kExclusive) {
        row.total = behind == nullptr ? before[j] : add(before[j], behind[j]);
      } else {
        row.total = add(before[j], own[j]);
      }
      B::compute(row, in, row_in[j], j, out);
    }
    B::store(params, first + k * inner, out);
  }
};

template <typename Op, typename Index, int kWidth, int kVectors, int kThreads, char... kModes>
__device__ inline void scan_strided(const RowParams<Index, Op::Inputs::size, Op::Outputs::size>& params) {
  begin_early();
  const Index columns = static_cast<Index>(params.columns);
  const Index inner = static_cast<Index>(params.inner);
  const Index tiles = (inner - 1) / (kWarpLanes * kWidth) + 1;
  const Index outer = blockIdx.x / tiles;
  const Index column = (blockIdx.x % tiles * kWarpLanes + threadIdx.x % kWarpLanes) * kWidth;
  StridedScan<Op, Index, kWidth, kVectors, kThreads, kModes...> part{params, outer * columns * inner + column, columns,
                                                                     inner, column < inner};
  part.run();
}

}  // namespace onnxopt
