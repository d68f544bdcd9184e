// ring: blocks (or clusters) that stay for row after row, the rows they work on in shared memory: kDepth rows at a
// time, one of which is reduced and stored while the others' elements are on their way. Every stage reads the row again
// from shared memory, so that few registers are taken, and the code is a short loop.
//
// Every thread copies what it will work on itself, into a place that no other thread reads: no barrier is needed.
#pragma once

#include "reduce.cuh"
#include "row_body.cuh"
#include "row_piped.cuh"

namespace onnxopt {

// Ends the group of copies that this thread has asked for since the last one.
__device__ inline void end_group() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Until all groups of this thread's copies but the newest kLeft have arrived.
template <int kLeft>
__device__ inline void wait_for_groups() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
#endif
}

// Shared memory of a block: for every input of kNext, kDepth rows of kVectors vectors a thread, for every input of
// kSame, which all rows share, one. Neighbouring threads' vectors are neighbours.
template <typename Op, int kWidth, int kVectors, int kThreads, int kDepth, unsigned kNext, unsigned kSame,
          typename Inputs, typename I>
struct RingSlots;

template <typename Op, int kWidth, int kVectors, int kThreads, int kDepth, unsigned kNext, unsigned kSame,
          typename... In, int... I>
struct RingSlots<Op, kWidth, kVectors, kThreads, kDepth, kNext, kSame, List<In...>, Indices<I...>> {
  unsigned char* memory;

  template <int kInput>
  static constexpr unsigned begin() {
    unsigned vectors = 0;
    ((vectors += I >= kInput ? 0u : unsigned(sizeof(In)) * ((kNext >> I & 1u) * kDepth + (kSame >> I & 1u))), ...);
    return vectors * kWidth * kVectors * kThreads;
  }

  template <int kInput, typename T>
  __device__ Vector<T, kWidth>* slot(int place, int v) const {
    const int at = ((kNext >> kInput & 1u) != 0 ? place * kVectors : 0) + v;
    return reinterpret_cast<Vector<T, kWidth>*>(memory + begin<kInput>()) + at * kThreads + threadIdx.x;
  }

  // Has the vectors of inputs in kWanted copied that begin at element i of them.
  template <unsigned kWanted, typename Params, typename Index>
  __device__ void fetch(const Params& params, Index i, int place, int v) const {
    (
        [&] {
          if constexpr ((kWanted >> I & 1u) != 0) {
            const In* const data = static_cast<const In*>(params.input[I].data) + i;
            copy_async(slot<I, In>(place, v), reinterpret_cast<const Vector<In, kWidth>*>(data));
          }
        }(),
        ...);
  }

  template <unsigned kWanted, typename Loaded>
  __device__ void take(int place, int v, Loaded& in) const {
    (
        [&] {
          if constexpr ((kWanted >> I & 1u) != 0) get<I>(in).value = *slot<I, In>(place, v);
        }(),
        ...);
  }
};

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
  using Slots = RingSlots<Op, kWidth, kVectors, kThreads, kDepth, kNext, kSame, typename Op::Inputs,
                          typename MakeIndices<Op::Inputs::size>::type>;

  const Params& params;
  const Slots slots;
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
      if (has(v)) slots.template fetch<kWanted>(params, begin + at(v), into, v);
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
        slots.template take<kReads & kMask>(place, v + u, in[u]);
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
        if (another) slots.template fetch<kNext>(params, next + at(v), place, v);
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
  wait_for_previous();
  using R = Ring<Op, Index, kWidth, kVectors, kThreads, kCluster, kColumns, kMask, kDepth, kModes...>;
  const Index columns = kColumns > 0 ? kColumns : static_cast<Index>(params.columns);
  R part{params, {dynamic_shared()}, columns, static_cast<int>(blockIdx.x % kCluster * kThreads + threadIdx.x)};
  part.run();
}

}  // namespace onnxopt
