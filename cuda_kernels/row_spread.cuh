// spread: long rows, each cut into parts for the blocks of a team, which all run at once and stay for row after row. A
// block leaves what its part of a row is reduced to in global memory and goes on to its part of the next rows; kLag
// rows later the others' results are there, and it stores its part. Loads, reductions and stores of different rows
// overlap, nobody waits for anybody, and every multiprocessor has as much to do, whatever the number of rows.
//
// Parts lie in shared memory, kDepth of them: of one row that is stored, kLag that are waited for, others on their way.
#pragma once

#include "reduce.cuh"
#include "row_slots.cuh"

namespace onnxopt {

// Words of a Partial that other blocks read, each in one access with the number of the row that it is of: whoever reads
// a word sees whether it is there yet, without a fence or a flag (as NCCL's LL protocol does).
using TaggedWord = unsigned long long;

__device__ inline void write_word(TaggedWord* to, uint32_t word, uint32_t tag) {
  const TaggedWord both = static_cast<TaggedWord>(tag) << 32 | word;
#ifdef __CUDACC__
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(both) : "memory");
#else
  *to = both;
#endif
}

__device__ inline TaggedWord read_word(const TaggedWord* from) {
#ifdef __CUDACC__
  TaggedWord found;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(found) : "l"(from) : "memory");
  return found;
#else
  return *static_cast<const volatile TaggedWord*>(from);
#endif
}

// One block's part of the row at hand, and the shared memory that it comes through. kMask: inputs, all of mode F or K,
// whose elements do. Every thread copies what it will work on itself, into a place that no other thread reads: no
// barrier is needed.
template <typename Op, typename Index, int kWidth, int kVectors, int kThreads, unsigned kMask, int kDepth,
          char... kModes>
struct SpreadPart {
  using B = RowBodyOf<Op, kWidth>;
  using Params = RowParams<Index, Op::Inputs::size, Op::Outputs::size>;
  static constexpr unsigned kNext = kMask & flat_inputs<kModes...>();  // the others are the same for every row
  static constexpr unsigned kSame = kMask & ~kNext;
  static constexpr int kAhead = kVectors < 2 ? 1 : 2;  // vectors whose loads are under way at once
  using S = Slots<Op, kWidth, kVectors, kThreads, kDepth, kNext, kSame, typename Op::Inputs,
                  typename MakeIndices<Op::Inputs::size>::type>;

  const Params& params;
  const S slots;
  const Index columns;
  const Index begin;  // of the part, in a row
  const Index end;
  int place = 0;  // of the row among those in shared memory
  Index first = 0;
  typename Op::Row row;
  typename B::RowLoaded row_in;
  typename B::template Bases<Index> row_bases;

  __device__ Index at(int v) const { return begin + static_cast<Index>((threadIdx.x + v * kThreads) * kWidth); }

  __device__ bool has(int v) const { return v < kVectors && at(v) < end; }

  template <unsigned kWanted>
  __device__ void fetch(Index from, int into) const {
#pragma unroll 4
    for (int v = 0; v < kVectors; ++v) {
      if (has(v)) slots.template fetch<kWanted>(params, from + at(v), v, into);
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

  // Goes on to row `now` of the domain, which is the team's row `turn`.
  __device__ void go_to(Index now, int turn) {
    first = now * columns;
    place = turn % kDepth;
    row_bases = B::template bases<kModes...>(params, first);
    B::load_row(params, first, row_in);
  }
};

template <typename Op, typename Index, int kWidth, int kVectors, int kThreads, unsigned kMask, int kDepth, int kLag,
          char... kModes>
struct Spread {
  using Part = SpreadPart<Op, Index, kWidth, kVectors, kThreads, kMask, kDepth, kModes...>;
  using B = typename Part::B;
  template <typename T>
  struct Only;
  template <typename T>
  struct Only<List<T>> {
    using type = T;
  };
  using Stage = typename Only<typename Op::MergedStages>::type;
  using Partial = typename Stage::Partial;
  static constexpr int kWords = sizeof(Partial) / 4;
  static constexpr int kPlaces =
      2 * kLag;  // whoever sends a row's result knows that all have read that of 2 kLag rows before
  static constexpr int kWarps = kThreads / 32;
  static_assert(kPlaces <= kSpreadPlaces);
  static_assert(kDepth > kLag, "a row that is waited for, and one that is reduced");

  Part part;
  TaggedWord* const words;  // of this team
  const int parts;
  const int index;  // of this part
  const uint32_t before;

  __device__ TaggedWord* at(int turn, int of) const {
    return words + (static_cast<long long>(turn % kPlaces) * parts + of) * kWords;
  }

  __device__ uint32_t tag(int turn) const { return before + turn + 1; }

  // One warp leaves what this block's part of row `turn` was reduced to.
  __device__ void send(const Partial* own, int turn) const {
    const int lane = threadIdx.x % 32;
    Partial partial = own[lane % kWarps];
    reduce_lanes<Stage, kWarps>(partial);
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      if (lane == k) write_word(at(turn, index) + k, reinterpret_cast<const uint32_t*>(&partial)[k], tag(turn));
    }
  }

  // Asks for what part number `lane` of row `turn` was reduced to.
  __device__ void ask(int turn, TaggedWord* found) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      if (lane < parts) found[k] = read_word(at(turn, lane) + k);
    }
  }

  // What row `turn` is reduced to. found: what one warp has asked for, before it was there perhaps.
  __device__ Partial receive(int turn, TaggedWord* found) const {
    const int lane = threadIdx.x % 32;
    Partial partial = Stage::identity();
    const auto is_there = [&] {
      bool all = true;
#pragma unroll
      for (int k = 0; k < kWords; ++k) all = all && static_cast<uint32_t>(found[k] >> 32) == tag(turn);
      return all;
    };
    if (lane < parts) {
      while (!is_there()) ask(turn, found);
#pragma unroll
      for (int k = 0; k < kWords; ++k) reinterpret_cast<uint32_t*>(&partial)[k] = static_cast<uint32_t>(found[k]);
    }
    __syncwarp();
    reduce_lanes<Stage, 32>(partial);
    return partial;
  }

  // first: the team's first row. step: how far its rows are apart.
  __device__ void run(Index first, Index step, Index rows) {
    __shared__ Partial own[2][kWarps];
    __shared__ Partial all[2];
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int turns = first < rows ? static_cast<int>((rows - first - 1) / step + 1) : 0;
    if (warp >= kWarps) {  // one sends, one receives
      TaggedWord found[kWords] = {};
#pragma unroll 1
      for (int turn = 0; turn < turns + kLag; ++turn) {
        if (warp == kWarps) {
          if (turn > 0 && turn <= turns) send(own[(turn - 1) & 1], turn - 1);
        } else if (turn >= kLag) {
          const Partial merged = receive(turn - kLag, found);
          if (lane == 0) all[turn & 1] = merged;
        }
        if (warp > kWarps && turn + 1 >= kLag && turn + 1 < turns + kLag) ask(turn + 1 - kLag, found);
        __syncthreads();
      }
      return;
    }
    const auto row_of = [&](int turn) { return first + static_cast<Index>(turn) * step; };
    part.row.length = static_cast<float>(part.columns);
    part.row.wide_length = static_cast<double>(part.columns);
    part.template fetch<Part::kSame>(0, 0);
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      if (d < turns) part.template fetch<Part::kNext>(row_of(d) * part.columns, d);
      end_group();
    }
#pragma unroll 1
    for (int turn = 0; turn < turns + kLag; ++turn) {
      const int stored = turn - kLag;
      if (turn < turns) {
        if (turn < kLag) {
          wait_for_groups<kDepth - kLag>();
        } else {
          wait_for_groups<kDepth - kLag - 1>();
        }
        part.go_to(row_of(turn), turn);
        Partial partial = part.template own<Stage>();
        reduce_lanes<Stage, 32>(partial);
        if (lane == 0) own[turn & 1][warp] = partial;
      }
      __syncthreads();
      if (stored < 0) continue;
      const Index now = row_of(stored);
      part.go_to(now, stored);
      B::template finish<Stage>(part.row, all[turn & 1], part.row_in);
      const bool another = stored + kDepth < turns;
      part.store(another, row_of(stored + kDepth) * part.columns);
      end_group();
      if (Op::kRowOutputs != 0 && index == 0 && threadIdx.x == 0) B::store_row(part.params, now, part.row, part.row_in);
    }
  }
};

template <typename Op, typename Index, int kWidth, int kVectors, int kThreads, unsigned kMask, int kDepth, int kLag,
          char... kModes>
__device__ inline void spread(const SplitParams<Index, Op::Inputs::size, Op::Outputs::size>& params) {
  begin_early();
  using S = Spread<Op, Index, kWidth, kVectors, kThreads, kMask, kDepth, kLag, kModes...>;
  auto* const state = static_cast<SpreadState*>(params.parts.scratch);
  const unsigned parts = static_cast<unsigned>(params.parts.parts);
  const unsigned teams = gridDim.x / parts;
  const unsigned team = blockIdx.x / parts;
  const unsigned index = blockIdx.x % parts;
  const Index columns = static_cast<Index>(params.of.columns);
  const Index length = static_cast<Index>(params.parts.part_columns);
  const Index begin = index * length;
  const Index rows = static_cast<Index>(params.of.rows);
  TaggedWord* const words =
      reinterpret_cast<TaggedWord*>(state + 1) + static_cast<long long>(team) * S::kPlaces * parts * S::kWords;
  const uint32_t before = *static_cast<volatile uint32_t*>(&state->rows);
  S spread{{params.of, {dynamic_shared()}, columns, begin, columns - begin < length ? columns : begin + length},
           words,
           static_cast<int>(parts),
           static_cast<int>(index),
           before};
  spread.run(team, teams, rows);
  if (threadIdx.x == 0 && atomicAdd(&state->ended, 1u) == gridDim.x - 1) {  // the others are not needed any more
    state->ended = 0;
    state->rows = before + static_cast<uint32_t>((rows - 1) / teams + 1);
  }
}

}  // namespace onnxopt
