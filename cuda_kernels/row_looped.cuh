// looped: a block or cluster reads the row again for every stage; any length, any alignment.
#pragma once

#include "reduce.cuh"
#include "row_body.cuh"

namespace onnxopt {

// A row of any length, or its part from `begin` to `end`, read once for each stage and once more for what is stored.
template <typename Op, typename Index, int kWidth, int kUnroll, int kThreads, int kCluster, char... kModes>
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

  // Calls body(k, in) for each of this thread's vectors, at element k of the row, kUnroll of them loaded ahead.
  template <unsigned kMask, typename Body>
  __device__ void each(Body&& body) {
#pragma unroll 1
    for (Index k = begin + lane * kWidth; k < end; k += kStep * kUnroll) {
      typename B::Loaded in[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const Index at = k + u * kStep;
        if (at < end) B::template load_all<kMask, kModes...>(params, first + at, at, in[u]);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const Index at = k + u * kStep;
        if (at < end) body(at, in[u]);
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
        B::template add<Stage>(partial, row, in, row_in, j);
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
        B::store(params, first + k, out);
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

template <typename Op, typename Index, int kWidth, int kUnroll, int kThreads, int kCluster, char... kModes>
__device__ inline void looped(const RowParams<Index, Op::Inputs::size, Op::Outputs::size>& params) {
  wait_for_previous();
  const Index columns = static_cast<Index>(params.columns);
  const Index row = blockIdx.x / kCluster;
  const Index lane = blockIdx.x % kCluster * kThreads + threadIdx.x;
  if (RowBodyOf<Op, kWidth>::vectors_fit(params, columns)) {
    Looped<Op, Index, kWidth, kUnroll, kThreads, kCluster, kModes...> part{params,  row * columns, columns, 0,
                                                                           columns, lane,          {},      {}};
    part.run(row);
  } else {
    Looped<Op, Index, 1, kUnroll, kThreads, kCluster, kModes...> part{params,  row * columns, columns, 0,
                                                                      columns, lane,          {},      {}};
    part.run(row);
  }
  if constexpr (kCluster > 1) cluster_barrier();
}

}  // namespace onnxopt
