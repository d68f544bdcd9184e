// Rows: load the elements of a row, reduce, compute on, store; as often as the program reduces.
//
// held: a row's elements stay in the registers of its threads, so every input is read once. kLanes threads work on a
// row (a part of a warp, a block, a cluster of blocks), each on kVectors vectors that lie kLanes vectors apart.
// looped: a block or cluster reads the row again for every stage; any length, any alignment.
// strided: the elements of a row lie `inner` apart; neighbouring threads work on neighbouring rows.
#pragma once

#include "pointwise.cuh"
#include "reduce.cuh"
#include "row_abi.h"

namespace onnxopt {

constexpr char kModeColumns = 'K';  // element k of every row is element k of the input
constexpr char kModeDense = 'D';    // a row's elements lie side by side, from where its first one lies

// Keeps the compiler from holding what it computed of a value: 16-bit elements stay packed in their registers.
template <typename T, int kWidth>
__device__ inline void forget(Vector<T, kWidth>& vector) {
  if constexpr (sizeof(vector) % 4 == 0) {
    uint32_t* words = reinterpret_cast<uint32_t*>(&vector);
#pragma unroll
    for (unsigned k = 0; k < sizeof(vector) / 4; ++k) asm volatile("" : "+r"(words[k]));
  }
}

template <typename Op, int kWidth, typename Inputs, typename Outputs, typename I, typename O>
struct RowBody;

// Op is generated: Inputs and Outputs list storage dtypes; kRowInputs marks inputs with one element a row, kRowOutputs
// outputs; Row holds row values; Stages lists the stages; output() and row_output() compute what is stored.
template <typename Op, int kWidth, typename... In, typename... Out, int... I, int... O>
struct RowBody<Op, kWidth, List<In...>, List<Out...>, Indices<I...>, Indices<O...>> {
  using Row = typename Op::Row;
  using Loaded = Tuple<Vector<In, kWidth>...>;
  using RowLoaded = Tuple<typename Compute<In>::type...>;
  template <typename Index>
  using Parameters = RowParams<Index, sizeof...(In), sizeof...(Out)>;

  // Where each input's first element of a row lies, for inputs that are dense in it.
  template <typename Index>
  struct Bases {
    Index at[sizeof...(In)];
  };

  template <char... kModes, typename Index>
  __device__ static Bases<Index> bases(const Parameters<Index>& params, Index first) {
    Bases<Index> found{};
    ((kModes == kModeDense ? void(found.at[I] = offset<AnyTerms, 0, '*'>(params.input[I], first)) : void()), ...);
    return found;
  }

  template <char kMode, typename T, typename Index>
  __device__ static Vector<T, kWidth> load_one(const Input<Index>& input, Index i, Index k, Index base) {
    if constexpr (kMode == kModeColumns) {
      return load_vector<T, kWidth>(static_cast<const T*>(input.data) + k);
    } else if constexpr (kMode == kModeDense) {
      return load_vector<T, kWidth>(static_cast<const T*>(input.data) + base + k);
    } else {
      return load<AnyTerms, 0, kMode, T, kWidth>(input, i);
    }
  }

  // Loads the inputs in kMask that vary along the row: the vector at element i of the domain, k of its row.
  template <unsigned kMask, char... kModes, typename Index>
  __device__ static void load_all(const Parameters<Index>& params, Index i, Index k, Loaded& in,
                                  const Bases<Index>& row_bases = {}) {
    (
        [&] {
          if constexpr (((kMask & ~Op::kRowInputs) >> I & 1u) != 0) {
            get<I>(in).value = load_one<kModes, In>(params.input[I], i, k, row_bases.at[I]);
          }
        }(),
        ...);
  }

  // Forgets what was computed of the inputs in kMask that are stored in 16 bits.
  template <unsigned kMask>
  __device__ static void forget_all(Loaded& in) {
    (
        [&] {
          if constexpr (((kMask & ~Op::kRowInputs) >> I & 1u) != 0 && sizeof(In) == 2) forget(get<I>(in).value);
        }(),
        ...);
  }

  // Bytes that a thread loads for one vector of every input.
  static constexpr unsigned kBytes =
      ((Op::kRowInputs >> I & 1u ? 0u : unsigned(sizeof(Vector<In, kWidth>))) + ... + 0u);

  template <typename Index>
  __device__ static void load_row(const Parameters<Index>& params, Index first, RowLoaded& in) {
    (
        [&] {
          if constexpr ((Op::kRowInputs >> I & 1u) != 0) {
            const Input<Index>& input = params.input[I];
            get<I>(in).value = widen(static_cast<const In*>(input.data)[offset<AnyTerms, 0, '*'>(input, first)]);
          }
        }(),
        ...);
  }

  template <int kInput, typename T>
  __device__ static typename Compute<T>::type value(const Loaded& in, const RowLoaded& row_in, int j) {
    if constexpr ((Op::kRowInputs >> kInput & 1u) != 0) {
      return get<kInput>(row_in).value;
    } else {
      return widen(get<kInput>(in).value.at[j]);
    }
  }

  template <typename Stage>
  __device__ static void add(typename Stage::Partial& partial, const Row& row, const Loaded& in,
                             const RowLoaded& row_in, int j) {
    Stage::accumulate(partial, row, value<I, In>(in, row_in, j)...);
  }

  template <typename Stage>
  __device__ static void finish(Row& row, const typename Stage::Partial& partial, const RowLoaded& row_in) {
    Stage::finish(row, partial, get<I>(row_in).value...);
  }

  using Stored = Tuple<Vector<Out, kWidth>...>;

  __device__ static void compute(const Row& row, const Loaded& in, const RowLoaded& row_in, int j, Stored& out) {
    Tuple<typename Compute<Out>::type...> y;
    Op::output(row, value<I, In>(in, row_in, j)..., get<O>(y).value...);
    (
        [&] {
          if constexpr ((Op::kRowOutputs >> O & 1u) == 0) {
            get<O>(out).value.at[j] = Narrow<Out>::from(get<O>(y).value);
          }
        }(),
        ...);
  }

  template <typename Index>
  __device__ static void store(const Parameters<Index>& params, Index i, const Stored& out) {
    (
        [&] {
          if constexpr ((Op::kRowOutputs >> O & 1u) == 0) {
            Out* const data = static_cast<Out*>(params.output[O]);
            if (data != nullptr) store_vector(data + i, get<O>(out).value);
          }
        }(),
        ...);
  }

  template <typename Index>
  __device__ static void store_row(const Parameters<Index>& params, Index at, const Row& row, const RowLoaded& row_in) {
    Tuple<typename Compute<Out>::type...> y;
    Op::row_output(row, get<I>(row_in).value..., get<O>(y).value...);
    (
        [&] {
          if constexpr ((Op::kRowOutputs >> O & 1u) != 0) {
            Out* const data = static_cast<Out*>(params.output[O]);
            if (data != nullptr) data[at] = Narrow<Out>::from(get<O>(y).value);
          }
        }(),
        ...);
  }

  // Whether every operand can be moved in vectors along what `extent` elements of lie side by side.
  template <typename Index>
  __device__ static bool vectors_fit(const Parameters<Index>& params, Index extent) {
    return extent % kWidth == 0 &&
           (((Op::kRowInputs >> I & 1u) != 0 || (params.input[I].flags & (kFlat | kCell)) != 0) && ...) &&
           ((reinterpret_cast<uint64_t>(params.output[O]) % sizeof(Vector<Out, kWidth>) == 0) && ...);
  }
};

template <typename Op, int kWidth>
using RowBodyOf = RowBody<Op, kWidth, typename Op::Inputs, typename Op::Outputs,
                          typename MakeIndices<Op::Inputs::size>::type, typename MakeIndices<Op::Outputs::size>::type>;

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

// A row of any length, read once for each stage and once more for what is stored.
template <typename Op, typename Index, int kWidth, int kUnroll, int kThreads, int kCluster, char... kModes>
struct Looped {
  using B = RowBodyOf<Op, kWidth>;
  using Params = RowParams<Index, Op::Inputs::size, Op::Outputs::size>;
  static constexpr Index kStep = Index(kThreads) * kCluster * kWidth;

  const Params& params;
  const Index first;
  const Index columns;
  const Index lane;
  typename Op::Row row;
  typename B::RowLoaded row_in;

  // Calls body(i, in) for each of this thread's vectors, kUnroll of them loaded ahead.
  template <unsigned kMask, typename Body>
  __device__ void each(Body&& body) {
#pragma unroll 1
    for (Index k = lane * kWidth; k < columns; k += kStep * kUnroll) {
      typename B::Loaded in[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const Index at = k + u * kStep;
        if (at < columns) B::template load_all<kMask, kModes...>(params, first + at, at, in[u]);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const Index at = k + u * kStep;
        if (at < columns) body(first + at, in[u]);
      }
    }
  }

  __device__ void stages(List<>) {}

  template <typename Stage, typename... Rest>
  __device__ void stages(List<Stage, Rest...>) {
    typename Stage::Partial partial = Stage::identity();
    each<Stage::kReads>([&](Index, const typename B::Loaded& in) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) B::template add<Stage>(partial, row, in, row_in, j);
    });
    reduce<Stage, kThreads * kCluster, kThreads, kCluster>(partial);
    B::template finish<Stage>(row, partial, row_in);
    stages(List<Rest...>());
  }

  __device__ void run(Index at) {
    row.length = static_cast<float>(columns);
    row.wide_length = static_cast<double>(columns);
    B::load_row(params, first, row_in);
    stages(typename Op::Stages());
    if constexpr (Op::kStoresElements) {
      each<Op::kOutputReads>([&](Index i, const typename B::Loaded& in) {
        typename B::Stored out;
#pragma unroll
        for (int j = 0; j < kWidth; ++j) B::compute(row, in, row_in, j, out);
        B::store(params, i, out);
      });
    }
    if (Op::kRowOutputs != 0 && lane == 0) B::store_row(params, at, row, row_in);
  }
};

template <typename Op, typename Index, int kWidth, int kUnroll, int kThreads, int kCluster, char... kModes>
__device__ inline void looped(const RowParams<Index, Op::Inputs::size, Op::Outputs::size>& params) {
  const Index columns = static_cast<Index>(params.columns);
  const Index row = blockIdx.x / kCluster;
  const Index lane = blockIdx.x % kCluster * kThreads + threadIdx.x;
  if (RowBodyOf<Op, kWidth>::vectors_fit(params, columns)) {
    Looped<Op, Index, kWidth, kUnroll, kThreads, kCluster, kModes...> part{params, row * columns, columns, lane, {},
                                                                           {}};
    part.run(row);
  } else {
    Looped<Op, Index, 1, kUnroll, kThreads, kCluster, kModes...> part{params, row * columns, columns, lane, {}, {}};
    part.run(row);
  }
  if constexpr (kCluster > 1) cluster_barrier();
}

// 32 threads side by side along `inner`, each with kWidth rows; kThreads / 32 of them share a row's elements.
template <typename Op, typename Index, int kWidth, int kThreads, char... kModes>
struct Strided {
  using B = RowBodyOf<Op, kWidth>;
  using Params = RowParams<Index, Op::Inputs::size, Op::Outputs::size>;
  static constexpr int kShares = kThreads / 32;

  const Params& params;
  const Index first;  // element of the domain
  const Index columns;
  const Index inner;
  const bool live;
  typename Op::Row row[kWidth];
  typename RowBodyOf<Op, 1>::RowLoaded row_in[kWidth];

  template <unsigned kMask, typename Body>
  __device__ void each(Body&& body) {
    if (!live) return;
#pragma unroll 4
    for (Index k = threadIdx.x / 32; k < columns; k += kShares) {
      typename B::Loaded in;
      B::template load_all<kMask, kModes...>(params, first + k * inner, k, in);
      body(first + k * inner, in);
    }
  }

  template <typename Stage>
  __device__ void reduce_shares(typename Stage::Partial (&partial)[kWidth]) {
    __shared__ typename Stage::Partial parts[kShares][kWidth][32];
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) parts[threadIdx.x / 32][j][lane] = partial[j];
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      partial[j] = parts[0][j][lane];
      for (int s = 1; s < kShares; ++s) Stage::merge(partial[j], parts[s][j][lane]);
    }
  }

  __device__ void stages(List<>) {}

  template <typename Stage, typename... Rest>
  __device__ void stages(List<Stage, Rest...>) {
    typename Stage::Partial partial[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) partial[j] = Stage::identity();
    each<Stage::kReads>([&](Index, const typename B::Loaded& in) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) B::template add<Stage>(partial[j], row[j], in, row_in[j], j);
    });
    reduce_shares<Stage>(partial);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) B::template finish<Stage>(row[j], partial[j], row_in[j]);
    stages(List<Rest...>());
  }

  __device__ void run(Index at) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      row[j].length = static_cast<float>(columns);
      row[j].wide_length = static_cast<double>(columns);
      if (live) B::load_row(params, static_cast<Index>(first + j), row_in[j]);
    }
    stages(typename Op::Stages());
    if constexpr (Op::kStoresElements) {
      each<Op::kOutputReads>([&](Index i, const typename B::Loaded& in) {
        typename B::Stored out;
#pragma unroll
        for (int j = 0; j < kWidth; ++j) B::compute(row[j], in, row_in[j], j, out);
        B::store(params, i, out);
      });
    }
    if (Op::kRowOutputs != 0 && live && threadIdx.x < 32) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) B::store_row(params, static_cast<Index>(at + j), row[j], row_in[j]);
    }
  }
};

template <typename Op, typename Index, int kWidth, int kThreads, char... kModes>
__device__ inline void strided_rows(const RowParams<Index, Op::Inputs::size, Op::Outputs::size>& params, Index tile,
                                    Index tiles) {
  const Index columns = static_cast<Index>(params.columns);
  const Index inner = static_cast<Index>(params.inner);
  const Index outer = tile / tiles;
  const Index column = (tile % tiles * 32 + threadIdx.x % 32) * kWidth;
  Strided<Op, Index, kWidth, kThreads, kModes...> part{
      params, outer * columns * inner + column, columns, inner, column < inner, {}, {}};
  part.run(outer * inner + column);
}

template <typename Op, typename Index, int kWidth, int kThreads, char... kModes>
__device__ inline void strided(const RowParams<Index, Op::Inputs::size, Op::Outputs::size>& params) {
  const Index inner = static_cast<Index>(params.inner);
  const Index tile = blockIdx.x;
  if (RowBodyOf<Op, kWidth>::vectors_fit(params, inner)) {
    const Index tiles = (inner / kWidth + 31) / 32;
    if (tile < tiles * (static_cast<Index>(params.rows) / inner)) {
      strided_rows<Op, Index, kWidth, kThreads, kModes...>(params, tile, tiles);
    }
  } else {
    strided_rows<Op, Index, 1, kThreads, kModes...>(params, tile, (inner + 31) / 32);
  }
}

}  // namespace onnxopt
