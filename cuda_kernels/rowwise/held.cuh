// held: a row's elements stay in the registers of its threads, so every input is read once. kLanes threads work on a
// row (a part of a warp, a block), each on kVectors vectors that lie kLanes vectors apart.
//
// ragged: the same for rows of a length that no vector divides. Vectors lie as they do in memory, so that a row begins
// and ends inside one; its neighbours' elements in these two are loaded, left out of every reduction and never stored.
#pragma once

#include "device/reduce.cuh"
#include "rowwise/body.cuh"

namespace onnxopt {

constexpr unsigned kMostPrefetched = 192;  // bytes a thread, all inputs together, that are loaded before reducing

constexpr int kMostChains = 4;  // partial results that a thread makes side by side: in one, each addition waits for the
                                // one before; where blocks stay for row after row, others' work hides that

constexpr int kMostComputed = 8;  // elements a thread of which what is reduced may stay until it is stored

// Where no input goes through shared memory.
struct NoSlots {
  static constexpr unsigned kKept = 0;
  static constexpr bool kAny = false;
  template <unsigned kMask, typename Loaded>
  __device__ void take(int, Loaded&) const {}
};

// One thread's part of a row that is held in registers. Slots: shared memory, from which the inputs that it keeps are
// taken vector by vector, whenever they are needed.
template <typename Op, typename Index, int kWidth, int kVectors, int kLanes, int kThreads, int kCluster, int kColumns,
          bool kRagged, typename Slots, char... kModes>
struct Held {
  using B = RowBodyOf<Op, kWidth>;
  using Params = RowParams<Index, Op::Inputs::size, Op::Outputs::size>;

  template <typename Stage, typename... Rest>
  static constexpr unsigned first_of(List<Stage, Rest...>) {
    return Stage::kReads;
  }

  static constexpr bool kPacks = kVectors * kWidth > kMostUnpacked;
  static constexpr bool kComputesOnce = kVectors * kWidth <= kMostComputed && Slots::kKept == 0;
  static constexpr unsigned kKept = Slots::kKept;
  static constexpr int kChains = !Slots::kAny && kVectors * kWidth >= 2 * kMostChains ? kMostChains : 1;

  static constexpr unsigned kAllOutputs = ((1u << Op::Outputs::size) - 1u) & ~Op::kRowOutputs;
  // Outputs that are stored before anything is reduced. They may lie where an input does that the host found free, so
  // whatever else is read of such an input must be in registers by then.
  static constexpr unsigned kEarlyOutputs =
      (inputs_anywhere<kModes...>() & ~Op::kRowInputs & ~first_of(typename Op::Stages())) == 0 ? Op::kEarlyOutputs : 0;

  const Params& params;
  const Index first;  // element of the domain
  const Index columns;
  const int lane;
  const bool live;
  const int turn;
  const Slots slots;
  typename Op::Row row;
  typename B::RowLoaded row_in;
  typename B::template Bases<Index> row_bases;
  typename B::Loaded in[kVectors];

  __device__ void begin() {
    row.length = static_cast<float>(columns);
    row.wide_length = static_cast<double>(columns);
    B::load_row(params, first, row_in);
  }

  __device__ void end(Index at) {
    if (Op::kRowOutputs != 0 && live && lane == 0) B::store_row(params, at, row, row_in);
  }

  // The first element of a vector, counted from the row's first; wraps below 0 where a ragged row begins inside it.
  __device__ Index at(int v) const {
    return static_cast<Index>((lane + v * kLanes) * kWidth) - (kRagged ? first % kWidth : 0);
  }

  // Whether so many elements behind every lane's vector are the row's: known where v is.
  __device__ static constexpr bool ends_inside(int v, int behind = 0) {
    return (v + 1) * kLanes * kWidth + behind <= kColumns;
  }

  // Whether all elements of every lane's vector are.
  __device__ static constexpr bool is_inside(int v) { return ends_inside(v) && (!kRagged || v > 0); }

  // Whether any element of a vector is the row's.
  __device__ bool has(int v) const {
    if (ends_inside(v)) return true;
    if constexpr (kRagged) return at(v) + (kWidth - 1) < columns + (kWidth - 1);
    return at(v) < columns;
  }

  __device__ bool has(int v, int j) const {
    return !kRagged || is_inside(v) || at(v) + static_cast<Index>(j) < columns;
  }

  template <unsigned kMask>
  __device__ void load(int v) {
    const Index k = at(v);
    slots.template take<kMask & kKept>(v, in[v]);
    if constexpr (kRagged) {
      B::template load_ragged<kMask & ~kKept, kModes...>(params, first, k, columns, ends_inside(v),
                                                         ends_inside(v, kWidth), in[v], row_bases);
    } else {
      B::template load_all<kMask & ~kKept, kModes...>(params, first + k, k, in[v], row_bases);
    }
  }

  template <unsigned kMask>
  __device__ void load() {
    if constexpr ((kMask & ~Op::kRowInputs) != 0) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (has(v)) load<kMask>(v);
      }
    }
  }

  template <unsigned kLoaded>
  __device__ void stages(List<>) {
    constexpr unsigned kLeft = Op::kOutputReads & ~kLoaded;
    if constexpr (!kPacks) load<kLeft & ~kKept>();
    if constexpr (Op::kStoresElements && kEarlyOutputs != kAllOutputs) store<kPacks ? kLeft : kLeft & kKept>();
  }

  // kLoaded: inputs that are in registers already. kFirst: nothing was reduced yet.
  template <unsigned kLoaded, bool kFirst = false, typename Stage, typename... Rest>
  __device__ void stages(List<Stage, Rest...>) {
    load<Stage::kReads & ~kLoaded & ~kKept>();
    typename Stage::Partial chain[kChains];
#pragma unroll
    for (int c = 0; c < kChains; ++c) chain[c] = Stage::identity();
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!kComputesOnce && !has(v)) continue;
      load<Stage::kReads & kKept>(v);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        typename Stage::Partial& partial = chain[(v * kWidth + j) % kChains];
        row.position = static_cast<int64_t>(at(v) + j);
        if constexpr (kComputesOnce) {  // also where there is no element, as only then the compiler reuses it
          typename Stage::Partial more = partial;
          B::template add<Stage>(more, row, in[v], row_in, j);
          if (has(v) && has(v, j)) partial = more;
        } else {
          if (has(v, j)) B::template add<Stage>(partial, row, in[v], row_in, j);
        }
      }
      if constexpr (kFirst && kEarlyOutputs != 0) {
        if (live && has(v)) store_vector<kEarlyOutputs>(v);
      }
    }
    typename Stage::Partial& partial = chain[0];
#pragma unroll
    for (int apart = 1; apart < kChains; apart *= 2) {
#pragma unroll
      for (int c = 0; c + apart < kChains; c += 2 * apart) Stage::merge(chain[c], chain[c + apart]);
    }
    reduce<Stage, kLanes, kThreads, kCluster>(partial, turn);
    B::template finish<Stage>(row, partial, row_in);
    if constexpr (kPacks) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) B::template forget_all<kLoaded | Stage::kReads>(in[v]);
    }
    stages<(kLoaded | Stage::kReads) & ~kKept>(List<Rest...>());
  }

  // kMask: inputs that are loaded vector by vector, as there are no registers for all of them at once.
  template <unsigned kMask>
  __device__ void store() {
    if (!live) return;
    if constexpr (Op::kStoresElements) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (!has(v)) continue;
        load<kMask>(v);
        store_vector<kAllOutputs & ~kEarlyOutputs>(v);
      }
    }
  }

  template <unsigned kOutputs>
  __device__ void store_vector(int v) {
    typename B::Stored out;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      row.position = static_cast<int64_t>(at(v) + j);
      B::compute(row, in[v], row_in, j, out);
    }
    if (kRagged && !is_inside(v)) {
      B::template store_part<kOutputs>(params, first + at(v), at(v), columns, out);
    } else {
      B::template store<kOutputs>(params, first + at(v), out);
    }
  }
};

template <typename Op, typename Index, int kWidth, int kVectors, int kLanes, int kThreads, int kColumns, bool kRagged,
          char... kModes>
__device__ inline void held_rows(const RowParams<Index, Op::Inputs::size, Op::Outputs::size>& params) {
  begin_early();
  using B = RowBodyOf<Op, kWidth>;
  // Flat inputs are read before anything else, so that all loads are in flight at once; where few registers hold them,
  // all inputs are.
  constexpr unsigned kEarly = B::kBytes * kVectors <= kMostPrefetched ? ~0u : flat_inputs<kModes...>();
  constexpr unsigned kFlatInputs = flat_inputs<kModes...>();
  // Signed, or the compiler knows which vectors every lane has and keeps what it computed of those in registers.
  const int thread = threadIdx.x;
  const Index wanted = static_cast<Index>(blockIdx.x) * (kThreads / kLanes) + thread / kLanes;
  const Index rows = static_cast<Index>(params.rows);
  const Index row = wanted < rows ? wanted : rows - 1;  // idle lanes repeat the last row: all take part in reducing
  const Index columns = kColumns > 0 ? kColumns : static_cast<Index>(params.columns);
  Held<Op, Index, kWidth, kVectors, kLanes, kThreads, 1, kColumns, kRagged, NoSlots, kModes...> part{
      params, row * columns, columns, thread % kLanes, wanted < rows, 0, {}, {}, {}, {}, {}};
  part.template load<kEarly & kFlatInputs>();  // on their way while it is found out where the others lie
  part.row_bases = B::template bases<kModes...>(params, part.first);
  part.begin();
  part.template load<kEarly & ~kFlatInputs>();
  if constexpr ((kEarly & ~kFlatInputs) != 0) pin_loads();
  part.template stages<kEarly, true>(typename Op::Stages());
  part.end(row);
}

template <typename Op, typename Index, int kWidth, int kVectors, int kLanes, int kThreads, int kColumns, char... kModes>
__device__ inline void held(const RowParams<Index, Op::Inputs::size, Op::Outputs::size>& params) {
  held_rows<Op, Index, kWidth, kVectors, kLanes, kThreads, kColumns, false, kModes...>(params);
}

template <typename Op, typename Index, int kWidth, int kVectors, int kLanes, int kThreads, int kColumns, char... kModes>
__device__ inline void ragged(const RowParams<Index, Op::Inputs::size, Op::Outputs::size>& params) {
  held_rows<Op, Index, kWidth, kVectors, kLanes, kThreads, kColumns, true, kModes...>(params);
}

}  // namespace onnxopt
