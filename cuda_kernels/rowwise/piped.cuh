// piped: held, by blocks (or clusters) that stay for row after row. While one row is reduced and stored, the next one's
// elements are on their way into shared memory, so that the memory is never idle.
//
// Every thread copies what it will work on itself, into a place that no other thread reads: no barrier is needed.
#pragma once

#include "rowwise/held.cuh"
#include "rowwise/slots.cuh"

namespace onnxopt {

// kMask: inputs, all of mode F or K, whose elements come through shared memory; the block has as much as they need.
// Those of mode K are copied once.
template <typename Op, typename Index, int kWidth, int kVectors, int kThreads, int kCluster, int kColumns,
          unsigned kMask, char... kModes>
__device__ inline void piped(const RowParams<Index, Op::Inputs::size, Op::Outputs::size>& params) {
  begin_cluster<kCluster>(typename Op::Stages());
  begin_early();
  constexpr int kLanes = kThreads * kCluster;
  constexpr unsigned kNext = kMask & flat_inputs<kModes...>();  // the others are the same for every row
  constexpr unsigned kSame = kMask & ~kNext;
  using B = RowBodyOf<Op, kWidth>;
  using S = Slots<Op, kWidth, kVectors, kThreads, 1, kNext, kSame, typename Op::Inputs,
                  typename MakeIndices<Op::Inputs::size>::type>;
  constexpr unsigned kEarly = (B::kBytes * kVectors <= kMostPrefetched ? ~0u : flat_inputs<kModes...>()) & ~kSame;
  const S slots{dynamic_shared()};
  const int lane = blockIdx.x % kCluster * kThreads + threadIdx.x;
  const Index step = gridDim.x / kCluster;
  const Index rows = static_cast<Index>(params.rows);
  const Index columns = kColumns > 0 ? kColumns : static_cast<Index>(params.columns);
  Index row = blockIdx.x / kCluster;
  const auto fetch = [&](auto wanted, Index first) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const Index k = static_cast<Index>((lane + v * kLanes) * kWidth);
      if (k < columns) slots.template fetch<decltype(wanted)::value>(params, first + k, v);
    }
  };
  if (row < rows) fetch(Constant<kNext>(), row * columns);
  fetch(Constant<kSame>(), Index{0});
  join_cluster<kCluster>();
  int turn = 0;
#pragma unroll 1
  for (; row < rows; row += step, ++turn) {
    Held<Op, Index, kWidth, kVectors, kLanes, kThreads, kCluster, kColumns, false, S, kModes...> part{
        params, row * columns, columns, lane, true,
        turn,   slots,         {},      {},   B::template bases<kModes...>(params, row * columns),
        {}};
    part.begin();
    part.template load<kEarly & ~kMask>();
    wait_for_copies();
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (part.has(v)) slots.template take<kNext>(v, part.in[v]);
    }
    if (row + step < rows) fetch(Constant<kNext>(), (row + step) * columns);
    part.template stages<kEarly | kNext, true>(typename Op::Stages());
    part.end(row);
  }
}

}  // namespace onnxopt
