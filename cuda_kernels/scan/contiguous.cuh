// Running totals along rows: what is summed up is computed of the inputs, what is stored of the inputs and the total.
//
// scan_held: a row is one chunk, which kLanes threads (a part of a warp, a block) hold in registers. scan_looped: a
// block goes along a row chunk by chunk, with the sum of what lies behind it. scan_split: so do blocks that each have a
// part of a row, in two launches: the first one leaves the sum of every part in `scratch`, from which the second one
// begins.
//
// Op is generated, as RowBody wants it; beyond that Row holds the total, Element's accumulate() gives what is summed
// up, kExclusive leaves an element's own value out of its total and kReverse sums rows up from their ends.
#pragma once

#include "rowwise/looped.cuh"
#include "scan/lanes.cuh"

namespace onnxopt {

// Vector p of a row in the order that it is summed up in. Where a ragged row begins or ends inside a vector, the
// neighbours' elements are left out.
template <typename Op, typename Index, int kWidth, int kVectors, int kLanes, int kThreads, bool kRagged, char... kModes>
struct ScannedRow {
  using B = RowBodyOf<Op, kWidth>;
  using Params = RowParams<Index, Op::Inputs::size, Op::Outputs::size>;
  using Element = typename Op::Element;
  using Total = typename Element::Partial;
  static constexpr Index kStep = Index(kLanes) * kVectors;

  const Params& params;
  const Index first;  // element of the domain
  const Index columns;
  const Index lane;
  const bool live;
  const Index head = kRagged ? first % kWidth : 0;  // elements of the row's first vector that are not its
  const Index vectors = (columns + head + kWidth - 1) / kWidth;
  typename Op::Row row;
  typename B::RowLoaded row_in;
  typename B::template Bases<Index> row_bases;

  __device__ void begin() {
    row_bases = B::template bases<kModes...>(params, first);
    B::load_row(params, first, row_in);
  }

  // The element of the row that vector p begins with; wraps below 0 where a ragged row begins inside it.
  __device__ Index at(Index p) const { return (Op::kReverse ? vectors - 1 - p : p) * kWidth - head; }

  // Place in a vector of the one that is summed up as number j.
  __device__ static constexpr int place(int j) { return Op::kReverse ? kWidth - 1 - j : j; }

  template <unsigned kMask>
  __device__ void load(Index begin, Index stop, typename B::Loaded (&in)[kVectors]) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const Index p = begin + v * kLanes + lane;
      if (p >= stop) continue;
      const Index k = at(p);
      if constexpr (kRagged) {
        B::template load_ragged<kMask, kModes...>(params, first, k, columns, false, false, in[v], row_bases);
      } else {
        B::template load_all<kMask, kModes...>(params, first + k, k, in[v], row_bases);
      }
    }
  }

  // Running totals inside the vector at element k of the row.
  __device__ void sum_up(Index k, const typename B::Loaded& in, Total (&totals)[kWidth]) {
    Total sum = Total(0);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      Total value;
      B::template add<Element>(value, row, in, row_in, place(j));
      if (!kRagged || k + static_cast<Index>(place(j)) < columns) sum = add(sum, value);
      totals[j] = sum;
    }
  }

  // Stores the vector at element k of the row, of which `before` lies before it.
  __device__ void store(Index k, const typename B::Loaded& in, const Total (&totals)[kWidth], Total before) {
    typename B::Stored out;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      if constexpr (Op::kExclusive) {
        row.total = j == 0 ? before : add(before, totals[j - 1]);
      } else {
        row.total = add(before, totals[j]);
      }
      B::compute(row, in, row_in, place(j), out);
    }
    if constexpr (kRagged) {
      B::store_part(params, first + k, k, columns, out);
    } else {
      B::store(params, first + k, out);
    }
  }

  // Vectors begin .. begin + kStep - 1, which were loaded; carry: the sum of all before them, then with them.
  __device__ void chunk(Index begin, Index stop, const typename B::Loaded (&in)[kVectors], Total& carry, int turn) {
    Total totals[kVectors][kWidth];
    Total before[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const Index p = begin + v * kLanes + lane;
      before[v] = Total(0);
      if (p >= stop) continue;
      sum_up(at(p), in[v], totals[v]);
      before[v] = totals[v][kWidth - 1];
    }
    scan_values<kVectors, kLanes, kThreads>(before, carry, turn);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const Index p = begin + v * kLanes + lane;
      if (live && p < stop) store(at(p), in[v], totals[v], before[v]);
    }
  }

  // Chunk by chunk, the next one on its way.
  __device__ void run(Index begin, Index stop, Total carry) {
    typename B::Loaded next[kVectors];
    load<~0u>(begin, stop, next);
    int turn = 0;
#pragma unroll 1
    for (Index p = begin; p < stop; p += kStep) {
      typename B::Loaded in[kVectors];
#pragma unroll
      for (int v = 0; v < kVectors; ++v) in[v] = next[v];
      load<~0u>(p + kStep, stop, next);
      chunk(p, stop, in, carry, turn++);
    }
  }

  // The sum of all elements of vectors begin .. stop - 1.
  __device__ Total sum(Index begin, Index stop) {
    Total own[1] = {Total(0)};
#pragma unroll 1
    for (Index p = begin; p < stop; p += kStep) {
      typename B::Loaded in[kVectors];
      load<Element::kReads>(p, stop, in);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const Index number = p + v * kLanes + lane;
        if (number >= stop) continue;
        Total totals[kWidth];
        sum_up(at(number), in[v], totals);
        own[0] = add(own[0], totals[kWidth - 1]);
      }
    }
    Total all = Total(0);
    scan_values<1, kLanes, kThreads>(own, all, 0);
    return all;
  }
};

template <typename Op, typename Index, int kWidth, int kVectors, int kLanes, int kThreads, bool kRagged, char... kModes>
__device__ inline void scan_held(const RowParams<Index, Op::Inputs::size, Op::Outputs::size>& params) {
  begin_early();
  const Index wanted = static_cast<Index>(blockIdx.x) * (kThreads / kLanes) + threadIdx.x / kLanes;
  const Index rows = static_cast<Index>(params.rows);
  const Index row = wanted < rows ? wanted : rows - 1;  // idle lanes repeat the last row: all take part in scanning
  const Index columns = static_cast<Index>(params.columns);
  using Part = ScannedRow<Op, Index, kWidth, kVectors, kLanes, kThreads, kRagged, kModes...>;
  Part part{params, row * columns, columns, threadIdx.x % kLanes, wanted < rows};
  part.begin();
  typename Part::B::Loaded in[kVectors];
  part.template load<~0u>(0, part.vectors, in);
  typename Part::Total carry(0);
  part.chunk(0, part.vectors, in, carry, 0);
}

template <typename Op, typename Index, int kWidth, int kVectors, int kThreads, char... kModes>
__device__ inline void scan_looped(const RowParams<Index, Op::Inputs::size, Op::Outputs::size>& params) {
  begin_early();
  const Index columns = static_cast<Index>(params.columns);
  with_vectors<Op, Index, kWidth, kModes...>(params, [&](auto width, auto ragged) {
    ScannedRow<Op, Index, width.value, kVectors, kThreads, kThreads, ragged.value, kModes...> part{
        params, blockIdx.x * columns, columns, threadIdx.x, true};
    part.begin();
    part.run(0, part.vectors, 0);
  });
}

// kPass: which launch this is.
template <typename Op, typename Index, int kWidth, int kVectors, int kThreads, int kPass, char... kModes>
__device__ inline void scan_split(const SplitParams<Index, Op::Inputs::size, Op::Outputs::size>& params) {
  using Total = typename Op::Element::Partial;
  begin_early();
  const Index columns = static_cast<Index>(params.of.columns);
  const Index parts = static_cast<Index>(params.parts.parts);
  const Index row = blockIdx.x / parts;
  const Index index = blockIdx.x % parts;
  Total* const sums = static_cast<Total*>(params.parts.scratch) + static_cast<uint64_t>(row) * parts;
  with_vectors<Op, Index, kWidth, kModes...>(params.of, [&](auto width, auto ragged) {
    ScannedRow<Op, Index, width.value, kVectors, kThreads, kThreads, ragged.value, kModes...> part{
        params.of, row * columns, columns, threadIdx.x, true};
    part.begin();
    const Index length = static_cast<Index>(params.parts.part_columns) / width.value;
    const Index begin = index * length;
    const Index stop = index == parts - 1 ? part.vectors : begin + length;
    if constexpr (kPass == 0) {
      const Total sum = part.sum(begin, stop);
      if (threadIdx.x == 0) sums[index] = sum;
    } else {
      Total own = Total(0);
      for (Index k = threadIdx.x % kWarpLanes; k < index; k += kWarpLanes) own = add(own, sums[k]);
      part.run(begin, stop, from_lane<kWarpLanes>(scan_lanes<kWarpLanes>(own), kWarpLanes - 1));
    }
  });
}

}  // namespace onnxopt
