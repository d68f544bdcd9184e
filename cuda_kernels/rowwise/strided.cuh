// strided: the elements of a row lie `inner` apart; neighbouring threads work on neighbouring rows. Where a thread's
// share of a row is short, it stays in registers.
#pragma once

#include "device/reduce.cuh"
#include "rowwise/body.cuh"

namespace onnxopt {

// kThreads / kLanes threads, at most a warp, side by side along `inner`, each with kWidth rows; kLanes of them share
// columns begin to end - 1. kVectors: how many a thread holds in registers, 0 where it reads them again for every
// stage.
template <typename Op, typename Index, int kWidth, int kVectors, int kLanes, int kThreads, char... kModes>
struct Strided {
  using B = RowBodyOf<Op, kWidth>;
  using Params = RowParams<Index, Op::Inputs::size, Op::Outputs::size>;
  static constexpr int kSide = kThreads / kLanes;

  // Vectors of the inputs in kMask that are loaded at a time where none are held: 64 bytes, but no more than 8 vectors,
  // or 4 where registers are few: rows are read more than once, or a block takes all registers of a multiprocessor.
  template <unsigned kMask>
  static constexpr int ahead() {
    constexpr int kFit = 64 / (B::template bytes<kMask>() > 0 ? B::template bytes<kMask>() : 1);
    constexpr int kMost = kThreads > 512 || Op::kStoresElements || Op::Stages::size > 1 ? 4 : 8;
    return kFit < 1 ? 1 : kFit < kMost ? kFit : kMost;
  }

  const Params& params;
  const Index first;  // element of the domain
  const Index columns;
  const Index inner;
  const Index begin;
  const Index end;
  const bool live;
  typename Op::Row row[kWidth];
  typename RowBodyOf<Op, 1>::RowLoaded row_in[kWidth];
  typename B::Loaded held[kVectors > 0 ? kVectors : 1];

  __device__ Index column(int v) const { return begin + threadIdx.x / kSide + static_cast<Index>(v * kLanes); }

  __device__ void load() {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const Index k = column(v);
      if (live && k < end) B::template load_all<~0u, kModes...>(params, first + k * inner, k, held[v]);
    }
  }

  template <unsigned kMask, typename Body>
  __device__ void each(Body&& body) {
    if (!live) return;
    if constexpr (kVectors > 0) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (column(v) < end) body(column(v), held[v]);
      }
    } else {
      constexpr int kAhead = ahead<kMask>();
#pragma unroll 1
      for (Index k = column(0); k < end; k += kLanes * kAhead) {
        typename B::Loaded in[kAhead];
#pragma unroll
        for (int u = 0; u < kAhead; ++u) {
          const Index at = k + u * kLanes;
          if (at < end) B::template load_all<kMask, kModes...>(params, first + at * inner, at, in[u]);
        }
#pragma unroll
        for (int u = 0; u < kAhead; ++u) {
          const Index at = k + u * kLanes;
          if (at < end) body(at, in[u]);
        }
      }
    }
  }

  template <typename Stage>
  __device__ void reduce_shares(typename Stage::Partial (&partial)[kWidth]) {
    constexpr int kWarps = kThreads / 32;
    __shared__ typename Stage::Partial parts[kWarps][kWidth][kSide];
    const int side = threadIdx.x % kSide;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
#pragma unroll
      for (int mask = kSide; mask < 32; mask *= 2) Stage::merge(partial[j], Stage::exchange(partial[j], mask));
      if (threadIdx.x % 32 < kSide) parts[threadIdx.x / 32][j][side] = partial[j];
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      partial[j] = parts[0][j][side];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) Stage::merge(partial[j], parts[w][j][side]);
    }
  }

  // Of these columns, for each of the thread's rows.
  template <typename Stage>
  __device__ void reduce(typename Stage::Partial (&partial)[kWidth]) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) partial[j] = Stage::identity();
    each<Stage::kReads>([&](Index k, const typename B::Loaded& in) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        row[j].position = static_cast<int64_t>(k);
        B::template add<Stage>(partial[j], row[j], in, row_in[j], j);
      }
    });
    reduce_shares<Stage>(partial);
  }

  template <typename Stage>
  __device__ void finish(const typename Stage::Partial (&partial)[kWidth]) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) B::template finish<Stage>(row[j], partial[j], row_in[j]);
  }

  __device__ void stages(List<>) {}

  template <typename Stage, typename... Rest>
  __device__ void stages(List<Stage, Rest...>) {
    typename Stage::Partial partial[kWidth];
    reduce<Stage>(partial);
    finish<Stage>(partial);
    if constexpr (kVectors * kWidth > kMostUnpacked) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) B::template forget_all<~0u>(held[v]);
    }
    stages(List<Rest...>());
  }

  __device__ void start() {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      row[j].length = static_cast<float>(columns);
      row[j].wide_length = static_cast<double>(columns);
      if (live) B::load_row(params, static_cast<Index>(first + j), row_in[j]);
    }
    load();
  }

  // The elements of these columns, and where stores_rows the values of the rows from `at` on.
  __device__ void store(Index at, bool stores_rows) {
    if constexpr (Op::kStoresElements) {
      each<Op::kOutputReads>([&](Index k, const typename B::Loaded& in) {
        typename B::Stored out;
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          row[j].position = static_cast<int64_t>(k);
          B::compute(row[j], in, row_in[j], j, out);
        }
        B::store(params, first + k * inner, out);
      });
    }
    if (Op::kRowOutputs != 0 && stores_rows && live && threadIdx.x < kSide) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) B::store_row(params, static_cast<Index>(at + j), row[j], row_in[j]);
    }
  }
};

template <typename Op, typename Index, int kWidth, int kVectors, int kLanes, int kThreads, char... kModes>
__device__ inline void strided(const RowParams<Index, Op::Inputs::size, Op::Outputs::size>& params) {
  begin_early();
  const Index columns = static_cast<Index>(params.columns);
  const Index inner = static_cast<Index>(params.inner);
  constexpr int kSide = kThreads / kLanes;
  const Index tiles = (inner - 1) / (kSide * kWidth) + 1;
  const Index outer = blockIdx.x / tiles;
  const Index column = (blockIdx.x % tiles * kSide + threadIdx.x % kSide) * kWidth;
  Strided<Op, Index, kWidth, kVectors, kLanes, kThreads, kModes...> part{
      params, outer * columns * inner + column, columns, inner, 0, columns, column < inner, {}, {}, {}};
  part.start();
  part.stages(typename Op::Stages());
  part.store(outer * inner + column, true);
}

}  // namespace onnxopt
