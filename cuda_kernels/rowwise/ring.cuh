// ring: blocks (or clusters) that stay for row after row, the rows they work on in shared memory: kDepth rows at a
// time, one of which is reduced and stored while the others' elements are on their way. Every stage reads the row again
// from shared memory, so that few registers are taken, and the code is a short loop.
//
// Every thread copies what it will work on itself, into a place that no other thread reads: no barrier is needed.
#pragma once

#include "device/reduce.cuh"
#include "rowwise/slots.cuh"

namespace onnxopt {

// kMask: inputs, all of mode F or K, whose elements come through shared memory; the block has as much as they need.
template <typename Op, typename Index, int kWidth, int kVectors, int kThreads, int kCluster, int kColumns,
          unsigned kMask, int kDepth, char... kModes>
struct Ring {
  using B = RowBodyOf<Op, kWidth>;
  using Params = RowParams<Index, Op::Inputs::size, Op::Outputs::size>;
  static constexpr unsigned kNext = kMask & flat_inputs<kModes...>();  // the others are the same for every row
  static constexpr unsigned kSame = kMask & ~kNext;
  static constexpr int kLanes = kThreads * kCluster;
  static constexpr int kAhead = kVectors < 2 ? 1 : 2;  // vectors whose loads are under way at once
  static constexpr bool kFull = kColumns == kLanes * kVectors * kWidth && kVectors % kAhead == 0;
  using S = Slots<Op, kWidth, kVectors, kThreads, kDepth, kNext, kSame, typename Op::Inputs,
                  typename MakeIndices<Op::Inputs::size>::type>;

  const Params& params;
  const S slots;
  const Index columns;
  const int lane;
  int place = 0;  // of the row in the ring
  int turn = 0;   // see reduce()
  Index first = 0;
  typename Op::Row row;
  typename B::RowLoaded row_in;
  typename B::template Bases<Index> row_bases;

  __device__ Index at(int v) const { return static_cast<Index>((lane + v * kLanes) * kWidth); }

  __device__ bool has(int v) const { return kFull || (v < kVectors && at(v) < columns); }

  template <unsigned kWanted>
  __device__ void fetch(Index begin, int into) const {
#pragma unroll 4
    for (int v = 0; v < kVectors; ++v) {
      if (has(v)) slots.template fetch<kWanted>(params, begin + at(v), v, into);
    }
  }

  // Calls body(v, in) for each of this thread's vectors of the row, with the inputs in kReads.
  template <unsigned kReads, typename Body>
  __device__ void each(Body&& body) {
#pragma unroll 1
    for (int v = 0; v < kVectors; v += kAhead) {
      typename B::Loaded in[kAhead];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        if (!has(v + u)) continue;
        B::template load_all<kReads & ~kMask, kModes...>(params, first + at(v + u), at(v + u), in[u], row_bases);
        slots.template take<kReads & kMask>(v + u, in[u], place);
      }
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        if (has(v + u)) body(v + u, in[u]);
      }
    }
  }

  __device__ void stages(List<>) {}

  template <typename Stage, typename... Rest>
  __device__ void stages(List<Stage, Rest...>) {
    typename Stage::Partial partial = Stage::identity();
    each<Stage::kReads & ~Op::kRowInputs>([&](int v, const typename B::Loaded& in) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        row.position = static_cast<int64_t>(at(v) + j);
        B::template add<Stage>(partial, row, in, row_in, j);
      }
    });
    reduce<Stage, kLanes, kThreads, kCluster>(partial, turn);
    B::template finish<Stage>(row, partial, row_in);
    stages(List<Rest...>());
  }

  // Stores the row, and has the one that begins at element `next` copied to where this one was, if there is one.
  __device__ void store(bool another, Index next) {
    if constexpr (Op::kStoresElements) {
      each<Op::kOutputReads & ~Op::kRowInputs>([&](int v, const typename B::Loaded& in) {
        typename B::Stored out;
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          row.position = static_cast<int64_t>(at(v) + j);
          B::compute(row, in, row_in, j, out);
        }
        B::store(params, first + at(v), out);
        if (another) slots.template fetch<kNext>(params, next + at(v), v, place);
      });
    } else {
      if (another) fetch<kNext>(next, place);
    }
  }

  __device__ void run() {
    const Index rows = static_cast<Index>(params.rows);
    const Index step = gridDim.x / kCluster;
    Index now = blockIdx.x / kCluster;
    fetch<kSame>(0, 0);
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      if (now + d * step < rows) fetch<kNext>((now + d * step) * columns, d);
      end_group();
    }
    join_cluster<kCluster>();
#pragma unroll 1
    for (; now < rows; now += step) {
      first = now * columns;
      row.length = static_cast<float>(columns);
      row.wide_length = static_cast<double>(columns);
      row_bases = B::template bases<kModes...>(params, first);
      B::load_row(params, first, row_in);
      wait_for_groups<kDepth - 1>();
      stages(typename Op::Stages());
      store(now + kDepth * step < rows, (now + kDepth * step) * columns);
      end_group();
      if (Op::kRowOutputs != 0 && lane == 0) B::store_row(params, now, row, row_in);
      ++turn;
      place = place + 1 == kDepth ? 0 : place + 1;
    }
  }
};

template <typename Op, typename Index, int kWidth, int kVectors, int kThreads, int kCluster, int kColumns,
          unsigned kMask, int kDepth, char... kModes>
__device__ inline void ring(const RowParams<Index, Op::Inputs::size, Op::Outputs::size>& params) {
  begin_cluster<kCluster>(typename Op::Stages());
  begin_early();
  using R = Ring<Op, Index, kWidth, kVectors, kThreads, kCluster, kColumns, kMask, kDepth, kModes...>;
  const Index columns = kColumns > 0 ? kColumns : static_cast<Index>(params.columns);
  R part{params, {dynamic_shared()}, columns, static_cast<int>(blockIdx.x % kCluster * kThreads + threadIdx.x)};
  part.run();
}

}  // namespace onnxopt
