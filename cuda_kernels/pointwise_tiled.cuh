// As pointwise.cuh, for a domain whose order is not that of an input: a transposition with work around it.
//
// A block takes a tile of kRows x kColumns elements. Inputs of modes X, Y and Z lie along the columns: neighbouring
// threads read neighbouring elements of them, in vectors where the mode is Z, and hand them over through shared memory.
// Then the tile is computed and stored along the rows, where outputs and all other inputs lie. A thread makes all of
// its loads before it waits for any: what lies along the rows is on its way while the tile is filled. A row of shared
// memory is a column of the tile and has an odd number of 4-byte words, so that threads which read across rows find
// them in different banks.
//
// A whole tile has all rows of the domain, so that it is one stretch of the outputs, and vectors cross from one column
// to the next: for rows that are short, or that no vector divides.
#pragma once

#include "pointwise.cuh"

namespace onnxopt {

template <int kRowsOf, int kColumnsOf, int kThreadsOf, bool kWholeOf>
struct Tile {
  static constexpr int kRows = kRowsOf;
  static constexpr int kColumns = kColumnsOf;
  static constexpr int kThreads = kThreadsOf;
  static constexpr bool kWhole = kWholeOf;
};

// How many elements of an input one load has along the columns: 16 bytes of mode Z, 8 of Y, one element of X.
template <typename T>
constexpr int elements_along(char mode) {
  return mode == 'Z' ? 16 / sizeof(T) : mode == 'Y' ? 8 / sizeof(T) : 1;
}

// A tile in shared memory. Its rows lie one behind the other; where they are short, its columns do instead, or threads
// that read across rows would meet in a few banks.
template <typename T, typename S>
struct Shared {
  static constexpr int kPad = sizeof(T) < 4 ? 4 / sizeof(T) : 1;
  static constexpr bool kByColumns = S::kColumns < 16;
  static constexpr int kStep = kByColumns ? S::kRows + kPad : S::kColumns + kPad;
  T at[kByColumns ? S::kColumns * kStep : S::kRows * kStep];

  __device__ T& element(int x, int y) { return at[kByColumns ? y * kStep + x : x * kStep + y]; }
  __device__ const T& element(int x, int y) const { return at[kByColumns ? y * kStep + x : x * kStep + y]; }
};

// Of one input: only those of modes X, Y and Z have any.
template <bool kThere, typename T, typename S>
struct TileOf {
  Shared<T, S> shared;
};

template <typename T, typename S>
struct TileOf<false, T, S> {};

// Of a tile in the domain. Element (x, y) of it is domain element base + x0 + x + y * step.
template <typename Index>
struct Place {
  Index x0;
  Index rows;     // left of the domain from x0 on
  Index columns;  // left of the domain in this tile
  Index step;
  Index base;

  __device__ Index at(Index x, Index y) const { return base + x0 + x + y * step; }
};

template <typename Op, typename P, typename Index, int... C>
__device__ inline bool all_hold(const P& params, unsigned guards, Index i, Indices<C...>) {
  return ((!(guards >> C & 1U) || holds<Op, C>(params.condition[C], i)) && ...);
}

// What one thread reads of one input along the columns. An offset is the sum of what x and what y contribute: the
// columns are one term, and no other term has digits of both.
// What the rows contribute to an offset: x is below the number of rows, so that the outermost digit needs no remainder.
template <typename Op, int kInput, typename Index>
__device__ inline auto offset_across(const Input<Index>& input, Index x) {
  using SignedIndex = typename Signed<Index>::type;
  if constexpr (Op::kStatic) {
    return static_cast<SignedIndex>(Op::template across<kInput>(x));
  } else {
    return offset<Op, kInput, 'V'>(input, x);
  }
}

template <typename Op, int kInput, typename T, int kWidth, typename S>
struct Column {
  // Where there are fewer columns than elements in a vector, they lie side by side: a vector has all columns of some
  // rows.
  static constexpr int kAlong = kWidth < S::kColumns ? kWidth : S::kColumns;
  static constexpr int kAcross = kWidth / kAlong;
  static constexpr int kVectors = S::kColumns / kAlong;  // of a row, or of kAcross rows
  static constexpr int kAll = S::kRows / kAcross * kVectors;
  static constexpr int kLoads = (kAll + S::kThreads - 1) / S::kThreads;
  static_assert(S::kRows % kAcross == 0, "vectors fill the tile");
  Vector<T, kWidth> held[kLoads];

  template <typename Index>
  __device__ static bool find(int load, const Place<Index>& place, Index& x, Index& y) {
    const int k = static_cast<int>(threadIdx.x) + load * S::kThreads;
    x = k / kVectors * kAcross;
    y = S::kThreads % kVectors == 0 ? static_cast<int>(threadIdx.x) % kVectors * kAlong : k % kVectors * kAlong;
    const bool inside = kAll % S::kThreads == 0 || k < kAll;
    return inside && x < place.rows && y < place.columns;
  }

  template <typename P, typename Index>
  __device__ void load(const P& params, const Place<Index>& place) {
#pragma unroll
    for (int n = 0; n < kLoads; ++n) {
      Index x, y;
      held[n] = splat<T, kWidth>(T{});
      if (!find(n, place, x, y)) continue;
      Source<T> source = {static_cast<const T*>(params.data[kInput]), true};
      if constexpr (Op::guards[kInput] != 0) {
        const Index i = place.at(x, y);
        source = source_of<Op, kInput, T>(params, [&](unsigned guards) {
          return all_hold<Op>(params, guards, i, typename MakeIndices<Op::kConditions>::type());
        });
      }
      const Input<Index>& input = params.input[kInput];
      const T* column = source.data + offset<Op, kInput, 'V'>(input, static_cast<Index>(place.base + y * place.step));
      const auto across = offset_across<Op, kInput>(input, static_cast<Index>(place.x0 + x));
      if (source.inside) held[n] = load_vector<T, kWidth>(column + across);
    }
  }

  template <typename Index>
  __device__ void store(Shared<T, S>& tile, const Place<Index>& place) const {
#pragma unroll
    for (int n = 0; n < kLoads; ++n) {
      Index x, y;
      if (!find(n, place, x, y)) continue;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) tile.element(x + j / kAlong, y + j % kAlong) = held[n].at[j];
    }
  }
};

template <typename Op, typename M, typename S, typename Inputs, typename I>
struct TileSet;

template <typename Op, typename M, typename S, typename... In, int... I>
struct TileSet<Op, M, S, List<In...>, Indices<I...>> {
  template <int kInput>
  static constexpr bool kThere = is_transposed(M::at[kInput]) && Op::leader[kInput] == kInput;

  Tuple<TileOf<kThere<I>, In, S>...> tiles;

  // work(): done between the loads of the tile and the first wait for them.
  template <typename P, typename Index, typename Work>
  __device__ void fill(const P& params, const Place<Index>& place, Work&& work) {
    Tuple<ColumnOf<I, In>...> columns;
    (load_one<I>(get<I>(columns).value, params, place), ...);
    work();
    (store_one<I>(get<I>(columns).value, place), ...);
  }

  template <int kWidth, typename Loaded>
  __device__ void read(int first, Loaded& in) const {
    (read_one<I, kWidth>(first, in), ...);
  }

 private:
  struct Nothing {};

  template <bool kHere, int kInput, typename T>
  struct ColumnType {
    static constexpr int kWidth = elements_along<T>(M::at[kInput]);
    using type = Column<Op, kInput, T, kWidth, S>;
  };

  template <int kInput, typename T>
  struct ColumnType<false, kInput, T> {
    using type = Nothing;
  };

  template <int kInput, typename T>
  using ColumnOf = typename ColumnType<kThere<kInput>, kInput, T>::type;

  template <int kInput, typename C, typename P, typename Index>
  __device__ void load_one(C& column, const P& params, const Place<Index>& place) {
    if constexpr (kThere<kInput>) column.load(params, place);
  }

  template <int kInput, typename C, typename Index>
  __device__ void store_one(const C& column, const Place<Index>& place) {
    if constexpr (kThere<kInput>) column.store(get<kInput>(tiles).value.shared, place);
  }

  template <int kInput, int kWidth, typename Loaded>
  __device__ void read_one(int first, Loaded& in) const {
    if constexpr (kThere<kInput>) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const int x = (first + j) % S::kRows;
        const int y = (first + j) / S::kRows;
        get<kInput>(in.input).value.at[j] = get<kInput>(tiles).value.shared.element(x, y);
      }
    }
  }
};

template <typename S, typename Index>
__device__ inline Place<Index> place_of(const Tiles<Index>& tiles) {
  const Index block = blockIdx.x;
  const Index higher = quotient(block, tiles.along_rows);
  const Index outer = quotient(higher, tiles.along_columns);
  const Index x0 = S::kWhole ? 0 : (block - higher * tiles.along_rows.divisor) * S::kRows;
  const Index y0 = (higher - outer * tiles.along_columns.divisor) * S::kColumns;
  return {x0, tiles.rows - x0, tiles.columns - y0, tiles.rows, tiles.rows * (y0 + tiles.columns * outer)};
}

// Vector k of a tile, along the rows: whether it lies in the domain, and its domain index.
template <typename S, int kWidth, typename Index>
__device__ inline bool find_vector(int k, const Place<Index>& place, Index& i) {
  if constexpr (S::kWhole) {
    const Index left = place.columns < S::kColumns ? place.columns : S::kColumns;
    i = place.base + k * kWidth;
    return k * kWidth < S::kRows * left;
  } else {
    const Index x = k * kWidth % S::kRows;
    const Index y = k * kWidth / S::kRows;
    i = place.at(x, y);
    return k * kWidth < S::kRows * S::kColumns && x < place.rows && y < place.columns;
  }
}

template <typename Op, typename Index, int kWidth, int kRows, int kColumns, bool kWhole, int kThreads, char... kModes>
__device__ inline void pointwise_tiled(
    const TiledParams<Index, Op::Inputs::size, Op::Outputs::size, Op::kConditions>& params) {
  using B = BodyOf<Op>;
  using M = Modes<kModes...>;
  using S = Tile<kRows, kColumns, kThreads, kWhole>;
  using Set = TileSet<Op, M, S, typename Op::Inputs, typename MakeIndices<Op::Inputs::size>::type>;
  static_assert(kWhole ? kRows * kColumns % kWidth == 0 : kRows % kWidth == 0, "vectors fill the tile");
  __shared__ Set set;
  wait_for_previous();
  const Place<Index> place = place_of<S>(params.tiles);
  constexpr int kVectors = (kRows * kColumns / kWidth + kThreads - 1) / kThreads;
  typename B::template Loaded<kWidth> in[kVectors];
  set.fill(params.of, place, [&] {
#pragma unroll
    for (int n = 0; n < kVectors; ++n) {
      Index i;
      if (find_vector<S, kWidth>(static_cast<int>(threadIdx.x) + n * kThreads, place, i)) {
        B::template load_all<kWidth, M>(params.of, i, in[n]);
      }
    }
  });
  __syncthreads();
#pragma unroll
  for (int n = 0; n < kVectors; ++n) {
    const int k = static_cast<int>(threadIdx.x) + n * kThreads;
    Index i;
    if (!find_vector<S, kWidth>(k, place, i)) continue;
    typename B::template Stored<kWidth> out;
    set.template read<kWidth>(k * kWidth, in[n]);
    B::template compute<kWidth>(in[n], out);
    B::template store_all<kWidth>(params.of, i, out);
  }
}

}  // namespace onnxopt
