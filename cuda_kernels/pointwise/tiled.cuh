// As pointwise.cuh, for a domain whose order is not that of an input: a transposition with work around it.
//
// A block takes a tile of kRows x kColumns elements. Inputs of modes X, Y, Z and z lie along the columns: neighbouring
// threads read neighbouring vectors of them (tile_column.cuh) and hand them over through shared memory. Then the tile
// is computed and stored along the rows, where outputs and all other inputs lie. A thread makes all of its loads before
// it waits for any: what lies along the rows is on its way while the tile is filled.
//
// Outputs are written in aligned vectors of the domain:
// - Where a vector divides the rows, they lie whole in a column of the tile.
// - A whole tile has all rows of the domain, so that it is one stretch of the outputs, and vectors cross from one
// column
//   to the next: for rows that are short, or that no vector divides.
// - A sliding tile begins, in each column, with the vector that its first row lies in: for any number of rows. It holds
//   kSlack rows more than it stores. Of vectors that reach over an end of the column, the elements in it are stored.
#pragma once

#include "pointwise/tile_words.cuh"

namespace onnxopt {

template <typename Op, typename M, typename S, typename Inputs, typename I>
struct TileSet;

template <typename Op, typename M, typename S, typename... In, int... I>
struct TileSet<Op, M, S, List<In...>, Indices<I...>> {
  template <int kInput>
  static constexpr bool kThere = is_transposed(M::at[kInput]) && Op::leader[kInput] == kInput;

  struct Nothing {};

  template <bool kHere, int kInput, typename T>
  struct ColumnType {
    static constexpr bool kWords = goes_in_words<Op, kInput, T, M::at[kInput], S>();
    using type = typename Either<kWords, ColumnWords<Op, kInput, T, M::at[kInput], S>,
                                 Column<Op, kInput, T, M::at[kInput], S>>::type;
    using Shared = typename type::Tiled;
  };

  template <int kInput, typename T>
  struct ColumnType<false, kInput, T> {
    using type = Nothing;
    using Shared = Nothing;
  };

  template <int kInput, typename T>
  using ColumnOf = typename ColumnType<kThere<kInput>, kInput, T>::type;

  template <int kInput, typename T>
  using SharedOf = typename ColumnType<kThere<kInput>, kInput, T>::Shared;

  Tuple<SharedOf<I, In>...> tiles;

  // work(): done between the loads of the tile and the first wait for them.
  template <typename P, typename Index, typename Work>
  __device__ void fill(const P& params, const Place<Index>& place, Work&& work) {
    Tuple<ColumnOf<I, In>...> columns;
    (load_one<I>(get<I>(columns).value, params, place), ...);
    work();
    (store_one<I>(get<I>(columns).value, params, place), ...);
  }

  // The elements from local row x of column y on.
  template <int kWidth, typename P, typename Index, typename Loaded>
  __device__ void read(const P& params, const Place<Index>& place, int x, int y, Loaded& in) const {
    (read_one<I, In, kWidth>(params, place, x, y, in), ...);
  }

 private:
  template <int kInput, typename C, typename P, typename Index>
  __device__ void load_one(C& column, const P& params, const Place<Index>& place) {
    if constexpr (kThere<kInput>) column.load(params, place);
  }

  template <int kInput, typename C, typename P, typename Index>
  __device__ void store_one(const C& column, const P& params, const Place<Index>& place) {
    if constexpr (kThere<kInput>) column.store(get<kInput>(tiles).value, params, place);
  }

  template <int kInput, typename T, int kWidth, typename P, typename Index, typename Loaded>
  __device__ void read_one(const P& params, const Place<Index>& place, int x, int y, Loaded& in) const {
    if constexpr (kThere<kInput>) {
      const auto& tile = get<kInput>(tiles).value;
      if constexpr (goes_in_words<Op, kInput, T, M::at[kInput], S>()) {
        get<kInput>(in.input).value = tile.template across<kWidth>(x, y);
      } else {
        const auto skew = Skew<T, M::at[kInput]>::template of<Op, kInput, S>(params, place);
        get<kInput>(in.input).value = tile.template across<kWidth>(x, y, skew);
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
  const Index left = tiles.columns - y0;
  return {x0, tiles.rows, left < S::kColumns ? left : S::kColumns, left, tiles.rows * (y0 + tiles.columns * outer)};
}

// A vector of a tile, along the rows.
template <typename Index>
struct Strip {
  bool there;   // whether any of it lies in this tile's columns
  Index index;  // in the domain
  Index first;  // the row of its first element; of a sliding tile it may lie up to a vector below 0
  int x, y;     // where it lies in shared memory
};

template <typename S, int kWidth, typename Index>
__device__ inline Strip<Index> strip(unsigned int k, const Place<Index>& place) {
  const int x = static_cast<int>(k * kWidth % S::kRows);
  const int y = static_cast<int>(k * kWidth / S::kRows);
  if constexpr (S::kWhole) {
    const bool there = k * kWidth < S::kRows * place.columns;
    return {there, place.base + k * kWidth, static_cast<Index>(x), x, y};
  } else {
    const Index column = place.base + y * place.rows;
    const int back = S::kSlack > 0 ? static_cast<int>(column % kWidth) : 0;
    const Index first = place.x0 + x - back;
    const bool inside = k * kWidth < S::kRows * S::kColumns && y < static_cast<int>(place.columns);
    // Below 0 there are at most kSlack rows, and the index wraps.
    const bool there = inside && (S::kSlack > 0 ? first + kWidth - 1 < place.rows + kWidth - 1 : first < place.rows);
    return {there, column + first, first, x - back + S::kSlack, y};
  }
}

// kShape: 'c' for a tile cut from the rows where a vector divides them, 'w' for a whole one, 's' for one that slides.
template <typename Op, typename Index, int kWidth, int kRows, int kColumns, char kShape, int kThreads, char... kModes>
__device__ inline void pointwise_tiled(
    const TiledParams<Index, Op::Inputs::size, Op::Outputs::size, Op::kConditions>& params) {
  using B = BodyOf<Op>;
  using M = Modes<kModes...>;
  using S = Tile<kRows, kColumns, kThreads, kShape == 'w', kShape == 's' ? kWidth : 0>;
  using Set = TileSet<Op, M, S, typename Op::Inputs, typename MakeIndices<Op::Inputs::size>::type>;
  static_assert(S::kWhole ? kRows * kColumns % kWidth == 0 : kRows % kWidth == 0, "vectors fill the tile");
  __shared__ Set set;
  begin_early();
  const Place<Index> place = place_of<S>(params.tiles);
  constexpr int kVectors = (kRows * kColumns / kWidth + kThreads - 1) / kThreads;
  // The last vector of the domain may not be whole where the tile slides.
  const auto is_whole = [&](const Strip<Index>& at) {
    return S::kSlack == 0 || at.index + kWidth <= static_cast<Index>(params.of.count);
  };
  typename B::template Loaded<kWidth> in[kVectors];
  set.fill(params.of, place, [&] {
#pragma unroll
    for (int n = 0; n < kVectors; ++n) {
      const Strip<Index> at = strip<S, kWidth>(threadIdx.x + n * kThreads, place);
      if (at.there && is_whole(at)) B::template load_all<kWidth, M>(params.of, at.index, in[n]);
    }
  });
  __syncthreads();
#pragma unroll
  for (int n = 0; n < kVectors; ++n) {
    const Strip<Index> at = strip<S, kWidth>(threadIdx.x + n * kThreads, place);
    if (!at.there) continue;
    if (is_whole(at)) {
      typename B::template Stored<kWidth> out;
      set.template read<kWidth>(params.of, place, at.x, at.y, in[n]);
      B::template compute<kWidth>(in[n], out);
      if (S::kSlack == 0 || (at.first < place.rows && at.first + kWidth <= place.rows)) {
        B::template store_all<kWidth>(params.of, at.index, out);
      } else {
        const auto inside = [&](int j) { return at.first + static_cast<Index>(j) < place.rows; };
        B::template store_some<kWidth>(params.of, at.index, out, inside);
      }
      continue;
    }
    if constexpr (S::kSlack > 0) {
#pragma unroll 1
      for (int j = 0; at.index + j < static_cast<Index>(params.of.count); ++j) {
        if (at.first + static_cast<Index>(j) >= place.rows) continue;
        typename B::template Loaded<1> element;
        typename B::template Stored<1> out;
        B::template load_all<1, M>(params.of, at.index + j, element);
        set.template read<1>(params.of, place, at.x + j, at.y, element);
        B::template compute<1>(element, out);
        B::template store_all<1>(params.of, at.index + j, out);
      }
    }
  }
}

}  // namespace onnxopt
