// looped: a block or cluster reads the row again for every stage; any length, any alignment. Rows of a length that no
// vector divides are cut into vectors as memory is (kRagged), where all operands lie in a way that allows it.
#pragma once

#include "device/reduce.cuh"
#include "rowwise/body.cuh"

namespace onnxopt {

// A row of any length, or its part from `begin` to `end`, read once for each stage and once more for what is stored.
template <typename Op, typename Index, int kWidth, int kUnroll, int kThreads, int kCluster, bool kRagged,
          char... kModes>
struct Looped {
  using B = RowBodyOf<Op, kWidth>;
  using Params = RowParams<Index, Op::Inputs::size, Op::Outputs::size>;
  static constexpr Index kStep = Index(kThreads) * kCluster * kWidth;

  const Params& params;
  const Index first;
  const Index columns;
  const Index begin;
  const Index end;
  const Index lane;
  typename Op::Row row;
  typename B::RowLoaded row_in;

  // Calls body(k, in) for each of this thread's vectors, at element k of the row, kUnroll of them loaded ahead. k wraps
  // below 0 where a ragged row begins inside a vector.
  template <unsigned kMask, typename Body>
  __device__ void each(Body&& body) {
    const Index head = kRagged ? first % kWidth : 0;  // elements of the vector that the row begins in that are not its
    const Index stop = kRagged && end == columns ? end + head : end;
#pragma unroll 1
    for (Index k = begin + lane * kWidth; k < stop; k += kStep * kUnroll) {
      typename B::Loaded in[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const Index at = k + u * kStep;
        if (at >= stop) continue;
        if constexpr (kRagged) {
          B::template load_ragged<kMask, kModes...>(params, first, at - head, columns, false, false, in[u], {});
        } else {
          B::template load_all<kMask, kModes...>(params, first + at, at, in[u]);
        }
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const Index at = k + u * kStep;
        if (at < stop) body(at - head, in[u]);
      }
    }
  }

  template <typename Stage>
  __device__ typename Stage::Partial reduced() {
    typename Stage::Partial partial = Stage::identity();
    each<Stage::kReads>([&](Index k, const typename B::Loaded& in) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        row.position = static_cast<int64_t>(k + j);
        if (!kRagged || k + static_cast<Index>(j) < columns) B::template add<Stage>(partial, row, in, row_in, j);
      }
    });
    reduce<Stage, kThreads * kCluster, kThreads, kCluster>(partial);
    return partial;
  }

  __device__ void start() {
    row.length = static_cast<float>(columns);
    row.wide_length = static_cast<double>(columns);
    B::load_row(params, first, row_in);
  }

  __device__ void stages(List<>) {}

  template <typename Stage, typename... Rest>
  __device__ void stages(List<Stage, Rest...>) {
    B::template finish<Stage>(row, reduced<Stage>(), row_in);
    stages(List<Rest...>());
  }

  // at: of the row, where it has outputs of its own. is_first: whether this thread stores them.
  __device__ void store(Index at, bool is_first) {
    if constexpr (Op::kStoresElements) {
      each<Op::kOutputReads>([&](Index k, const typename B::Loaded& in) {
        typename B::Stored out;
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          row.position = static_cast<int64_t>(k + j);
          B::compute(row, in, row_in, j, out);
        }
        if constexpr (kRagged) {
          B::store_part(params, first + k, k, columns, out);
        } else {
          B::store(params, first + k, out);
        }
      });
    }
    if (Op::kRowOutputs != 0 && is_first) B::store_row(params, at, row, row_in);
  }

  __device__ void run(Index at) {
    start();
    stages(typename Op::Stages());
    store(at, lane == 0);
  }
};

// Calls run(part) with what makes a Looped of vectors as long as the operands allow: its width, and whether it is
// ragged.
template <typename Op, typename Index, int kWidth, char... kModes, typename Params, typename Run>
__device__ inline void with_vectors(const Params& params, Run&& run) {
  using B = RowBodyOf<Op, kWidth>;
  if (B::vectors_fit(params, static_cast<Index>(params.columns))) {
    run(Constant<kWidth>(), Constant<false>());
    return;
  }
  if constexpr (((kModes == access_mode::kFlat || kModes == access_mode::kByColumn) && ...)) {
    if (B::template flat_are_aligned<kModes...>(params)) {
      run(Constant<kWidth>(), Constant<true>());
      return;
    }
  }
  run(Constant<1>(), Constant<false>());
}

template <typename Op, typename Index, int kWidth, int kUnroll, int kThreads, int kCluster, char... kModes>
__device__ inline void looped(const RowParams<Index, Op::Inputs::size, Op::Outputs::size>& params) {
  begin_cluster<kCluster>(typename Op::Stages());
  begin_early();
  join_cluster<kCluster>();
  const Index columns = static_cast<Index>(params.columns);
  const Index row = blockIdx.x / kCluster;
  const Index lane = blockIdx.x % kCluster * kThreads + threadIdx.x;
  with_vectors<Op, Index, kWidth, kModes...>(params, [&](auto width, auto ragged) {
    Looped<Op, Index, width.value, kUnroll, kThreads, kCluster, ragged.value, kModes...> part{
        params, row * columns, columns, 0, columns, lane, {}, {}};
    part.run(row);
  });
}

}  // namespace onnxopt
