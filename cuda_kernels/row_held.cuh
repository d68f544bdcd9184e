// held: a row's elements stay in the registers of its threads, so every input is read once. kLanes threads work on a
// row (a part of a warp, a block, a cluster of blocks), each on kVectors vectors that lie kLanes vectors apart.
#pragma once

#include "reduce.cuh"
#include "row_body.cuh"

namespace onnxopt {

constexpr int kMostUnpacked = 32;  // elements a thread that are kept in the compute dtype, where they are 16 bits
constexpr unsigned kMostPrefetched = 160;  // bytes a thread, all inputs together, that are loaded before reducing

// One thread's part of a row that is held in registers.
template <typename Op, typename Index, int kWidth, int kVectors, int kLanes, int kThreads, int kCluster, int kColumns,
          char... kModes>
struct Held {
  using B = RowBodyOf<Op, kWidth>;
  using Params = RowParams<Index, Op::Inputs::size, Op::Outputs::size>;
  static constexpr bool kFull = kColumns == kLanes * kVectors * kWidth;
  static constexpr bool kPacks = kVectors * kWidth > kMostUnpacked;

  const Params& params;
  const Index first;  // element of the domain
  const Index columns;
  const int lane;
  const bool live;
  typename Op::Row row;
  typename B::RowLoaded row_in;
  typename B::template Bases<Index> row_bases;
  typename B::Loaded in[kVectors];

  __device__ bool has(int v) const { return kFull || static_cast<Index>((lane + v * kLanes) * kWidth) < columns; }

  template <unsigned kMask>
  __device__ void load() {
    if constexpr ((kMask & ~Op::kRowInputs) != 0) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const Index k = (lane + v * kLanes) * kWidth;
        if (has(v)) B::template load_all<kMask, kModes...>(params, first + k, k, in[v], row_bases);
      }
    }
  }

  template <unsigned kLoaded>
  __device__ void stages(List<>) {
    if constexpr (!kPacks) load<Op::kOutputReads & ~kLoaded>();
    store<kPacks ? Op::kOutputReads & ~kLoaded : 0u>();
  }

  // kLoaded: inputs that are in registers already.
  template <unsigned kLoaded, typename Stage, typename... Rest>
  __device__ void stages(List<Stage, Rest...>) {
    load<Stage::kReads & ~kLoaded>();
    typename Stage::Partial partial = Stage::identity();
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!has(v)) continue;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) B::template add<Stage>(partial, row, in[v], row_in, j);
    }
    reduce<Stage, kLanes, kThreads, kCluster>(partial);
    B::template finish<Stage>(row, partial, row_in);
    if constexpr (kPacks) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) B::template forget_all<kLoaded | Stage::kReads>(in[v]);
    }
    stages<kLoaded | Stage::kReads>(List<Rest...>());
  }

  // kMask: inputs that are loaded vector by vector, as there are no registers for all of them at once.
  template <unsigned kMask>
  __device__ void store() {
    if (!live) return;
    if constexpr (Op::kStoresElements) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (!has(v)) continue;
        const Index k = (lane + v * kLanes) * kWidth;
        B::template load_all<kMask, kModes...>(params, first + k, k, in[v], row_bases);
        typename B::Stored out;
#pragma unroll
        for (int j = 0; j < kWidth; ++j) B::compute(row, in[v], row_in, j, out);
        B::store(params, first + (lane + v * kLanes) * kWidth, out);
      }
    }
  }
};

// Inputs that are as large as the domain: read before anything else, so that all loads are in flight at once. Where
// few registers hold them, all inputs are.
template <char... kModes>
__device__ constexpr unsigned flat_inputs() {
  unsigned mask = 0;
  unsigned bit = 1;
  ((mask |= is_flat(kModes) ? bit : 0u, bit *= 2), ...);
  return mask;
}

template <typename Op, typename Index, int kWidth, int kVectors, int kLanes, int kThreads, int kCluster, int kColumns,
          char... kModes>
__device__ inline void held(const RowParams<Index, Op::Inputs::size, Op::Outputs::size>& params) {
  constexpr int kRows = kThreads * kCluster / kLanes;  // of a block or cluster
  using B = RowBodyOf<Op, kWidth>;
  constexpr unsigned kEarly = B::kBytes * kVectors <= kMostPrefetched ? ~0u : flat_inputs<kModes...>();
  const int thread = blockIdx.x % kCluster * kThreads + threadIdx.x;
  const Index wanted = static_cast<Index>(blockIdx.x / kCluster) * kRows + thread / kLanes;
  const Index rows = static_cast<Index>(params.rows);
  const Index row = wanted < rows ? wanted : rows - 1;  // idle lanes repeat the last row: all take part in reducing
  const Index columns = kColumns > 0 ? kColumns : static_cast<Index>(params.columns);
  Held<Op, Index, kWidth, kVectors, kLanes, kThreads, kCluster, kColumns, kModes...> part{
      params,
      row * columns,
      columns,
      thread % kLanes,
      wanted < rows,
      {},
      {},
      B::template bases<kModes...>(params, row * columns),
      {}};
  part.row.length = static_cast<float>(columns);
  part.row.wide_length = static_cast<double>(columns);
  B::load_row(params, part.first, part.row_in);
  part.template load<kEarly>();
  part.template stages<kEarly>(typename Op::Stages());
  if (Op::kRowOutputs != 0 && part.live && part.lane == 0) B::store_row(params, row, part.row, part.row_in);
  if constexpr (kCluster > 1) cluster_barrier();  // until then others may read this block's shared memory
}

}  // namespace onnxopt
