// ring: blocks (or clusters) that stay for row after row, the rows they work on in shared memory: kDepth rows at a
// time, one of which is reduced and stored while the others' elements are on their way. Every stage reads the row again
// from shared memory, so that few registers are taken, and the code is a short loop.
//
// Every thread copies what it will work on itself, into a place that no other thread reads: no barrier is needed.
#pragma once

#include "reduce.cuh"
#include "row_slots.cuh"

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
  static constexpr int kPlaces = kDepth > 1 ? 4 : 2;  // see Reduction
  using S = Slots<Op, kWidth, kVectors, kThreads, kDepth, kNext, kSame, typename Op::Inputs,
                  typename MakeIndices<Op::Inputs::size>::type>;

  const Params& params;
  const S slots;
  const Index columns;
  const int lane;
  int place = 0;  // of the row in the ring
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

  // What this thread's elements are reduced to.
  template <typename Stage>
  __device__ typename Stage::Partial own() {
    if constexpr (kIsMerged<Stage>) {
      const auto found = own<typename Stage::First>();
      Stage::center(row, found, count());
      return {count(), found, own<typename Stage::Second>()};
    } else {
      typename Stage::Partial partial = Stage::identity();
      each<Stage::kReads & ~Op::kRowInputs>([&](int v, const typename B::Loaded& in) {
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          row.position = static_cast<int64_t>(at(v) + j);
          B::template add<Stage>(partial, row, in, row_in, j);
        }
      });
      return partial;
    }
  }

  // How many elements this thread has.
  __device__ float count() const {
    int vectors = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) vectors += has(v);
    return static_cast<float>(vectors * kWidth);
  }

  // Reduces the row at hand, which is the block's row `turn`, and has the result sent.
  template <typename Stage, typename... Rest>
  __device__ void begin(List<Stage, Rest...>, int turn) {
    Reduction<Stage, kLanes, kThreads, kCluster, kPlaces>::send(own<Stage>(), turn);
  }

  // The results of all stages of the row at hand, the first of which has been sent.
  template <typename Stage, typename... Rest>
  __device__ void finish(List<Stage, Rest...>, int turn) {
    B::template finish<Stage>(row, Reduction<Stage, kLanes, kThreads, kCluster, kPlaces>::receive(turn), row_in);
    (
        [&] {
          auto partial = own<Rest>();
          reduce<Rest, kLanes, kThreads, kCluster, kPlaces>(partial, turn);
          B::template finish<Rest>(row, partial, row_in);
        }(),
        ...);
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

  // Goes on to row `now` of the domain, which is the block's row `turn`.
  __device__ void go_to(Index now, int turn) {
    first = now * columns;
    place = turn % kDepth;
    row_bases = B::template bases<kModes...>(params, first);
    B::load_row(params, first, row_in);
  }

  // The next row is reduced before the one at hand is stored, so that nobody waits until all results have arrived.
  __device__ void run() {
    constexpr bool kDelayed = kDepth > 1;
    using Stages = typename Op::MergedStages;
    const Index rows = static_cast<Index>(params.rows);
    const Index step = gridDim.x / kCluster;
    Index now = blockIdx.x / kCluster;
    row.length = static_cast<float>(columns);
    row.wide_length = static_cast<double>(columns);
    fetch<kSame>(0, 0);
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      if (now + d * step < rows) fetch<kNext>((now + d * step) * columns, d);
      end_group();
    }
    join_cluster<kCluster>();
    if (kDelayed && now < rows) {
      wait_for_groups<kDepth - 1>();
      go_to(now, 0);
      begin(Stages(), 0);
    }
#pragma unroll 1
    for (int turn = 0; now < rows; now += step, ++turn) {
      const bool another = now + step < rows;
      if (kDelayed && another) {
        wait_for_groups<(kDelayed ? kDepth - 2 : 0)>();
        go_to(now + step, turn + 1);
        begin(Stages(), turn + 1);
      }
      go_to(now, turn);
      if constexpr (!kDelayed) {
        wait_for_groups<0>();
        begin(Stages(), turn);
      }
      finish(Stages(), turn);
      store(now + kDepth * step < rows, (now + kDepth * step) * columns);
      end_group();
      if (Op::kRowOutputs != 0 && lane == 0) B::store_row(params, now, row, row_in);
    }
  }
};

template <typename Op, typename Index, int kWidth, int kVectors, int kThreads, int kCluster, int kColumns,
          unsigned kMask, int kDepth, char... kModes>
__device__ inline void ring(const RowParams<Index, Op::Inputs::size, Op::Outputs::size>& params) {
  using R = Ring<Op, Index, kWidth, kVectors, kThreads, kCluster, kColumns, kMask, kDepth, kModes...>;
  begin_cluster<kCluster, R::kPlaces>(typename Op::MergedStages());
  begin_early();
  const Index columns = kColumns > 0 ? kColumns : static_cast<Index>(params.columns);
  R part{params, {dynamic_shared()}, columns, static_cast<int>(blockIdx.x % kCluster * kThreads + threadIdx.x)};
  part.run();
}

}  // namespace onnxopt
