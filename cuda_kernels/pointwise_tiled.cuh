// As pointwise.cuh, for a domain whose order is not that of an input: a transposition with work around it.
//
// A block takes a tile of kRows x kTileColumns elements. Inputs of mode X lie along the columns: neighbouring threads
// read neighbouring elements of them, and hand them over through shared memory. Then the tile is computed and stored
// along the rows, where outputs and all other inputs lie. A row of shared memory is a column of the tile and has an odd
// number of 4-byte words, so that threads which read across rows find them in different banks.
#pragma once

#include "pointwise.cuh"

namespace onnxopt {

template <typename T>
struct TileRow {
  static constexpr int kPad = sizeof(T) < 4 ? 4 / sizeof(T) : 1;
  T at[kTileColumns + kPad];
};

// Shared memory of one input: only those of mode X have any.
template <bool kThere, typename T, int kRows>
struct TileOf {
  TileRow<T> row[kRows];
};

template <typename T, int kRows>
struct TileOf<false, T, kRows> {};

template <typename Index>
struct Place {
  Index rows;  // left of the domain in this tile
  Index columns;
  Index step;   // of the domain index from one column to the next
  Index first;  // domain index of the tile's first element
};

// Whether all of the conditions `kGuards` hold at a domain index.
template <typename Op, unsigned kGuards, typename P, typename Index, int... C>
__device__ inline bool all_hold_of(const P& params, Index i, Indices<C...>) {
  return ((!(kGuards >> C & 1U) || holds<Op, C>(params.condition[C], i)) && ...);
}

template <typename Op, unsigned kGuards, typename P, typename Index>
__device__ inline bool all_hold(const P& params, Index i) {
  bool all = true;
  if constexpr (kGuards != 0) all = all_hold_of<Op, kGuards>(params, i, typename MakeIndices<Op::kConditions>::type());
  return all;
}

// Reads a tile of one input along the columns, in vectors where the host found them whole and aligned (kInner). What
// its guards exclude is not read.
template <typename Op, int kInput, typename T, int kRows, int kThreads, typename P, typename Index>
__device__ inline void fill_tile(TileRow<T> (&row)[kRows], const P& params, const Place<Index>& place) {
  const Input<Index>& input = params.input[kInput];
  const T* data = static_cast<const T*>(input.data);
  constexpr unsigned kGuards = Op::guards[kInput];
  constexpr int kWidth = sizeof(T) < 16 ? 16 / sizeof(T) : 1;
  if (input.flags & kInner) {
    constexpr int kVectors = kTileColumns / kWidth;
#pragma unroll 4
    for (int k = threadIdx.x; k < kRows * kVectors; k += kThreads) {
      const Index x = k / kVectors;
      const Index y = k % kVectors * kWidth;
      const Index i = place.first + x + y * place.step;
      if (x >= place.rows || y >= place.columns || !all_hold<Op, kGuards>(params, i)) continue;
      const auto vector = load_vector<T, kWidth>(data + offset<Op, kInput, 'V'>(input, i));
#pragma unroll
      for (int j = 0; j < kWidth; ++j) row[x].at[y + j] = vector.at[j];
    }
    return;
  }
#pragma unroll 4
  for (int k = threadIdx.x; k < kRows * kTileColumns; k += kThreads) {
    const Index x = k / kTileColumns;
    const Index y = k % kTileColumns;
    const Index i = place.first + x + y * place.step;
    if (x >= place.rows || y >= place.columns || !all_hold<Op, kGuards>(params, i)) continue;
    row[x].at[y] = data[offset<Op, kInput, 'V'>(input, i)];
  }
}

template <typename Op, typename M, int kRows, int kThreads, typename Inputs, typename I>
struct TileSet;

template <typename Op, typename M, int kRows, int kThreads, typename... In, int... I>
struct TileSet<Op, M, kRows, kThreads, List<In...>, Indices<I...>> {
  Tuple<TileOf<is_transposed(M::at[I]), In, kRows>...> tiles;

  template <typename P, typename Index>
  __device__ void fill(const P& params, const Place<Index>& place) {
    (fill_one<I, In>(params, place), ...);
  }

  template <int kWidth, typename Loaded>
  __device__ void read(int x, int y, Loaded& in) const {
    (read_one<I, kWidth>(x, y, in), ...);
  }

 private:
  template <int kInput, typename T, typename P, typename Index>
  __device__ void fill_one(const P& params, const Place<Index>& place) {
    if constexpr (is_transposed(M::at[kInput])) {
      fill_tile<Op, kInput, T, kRows, kThreads>(get<kInput>(tiles).value.row, params, place);
    }
  }

  template <int kInput, int kWidth, typename Loaded>
  __device__ void read_one(int x, int y, Loaded& in) const {
    if constexpr (is_transposed(M::at[kInput])) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) get<kInput>(in.input).value.at[j] = get<kInput>(tiles).value.row[x + j].at[y];
    }
  }
};

template <typename Op, typename Index, int kWidth, int kRows, int kThreads, char... kModes>
__device__ inline void pointwise_tiled(
    const TiledParams<Index, Op::Inputs::size, Op::Outputs::size, Op::kConditions>& params) {
  using B = BodyOf<Op>;
  using M = Modes<kModes...>;
  using Set = TileSet<Op, M, kRows, kThreads, typename Op::Inputs, typename MakeIndices<Op::Inputs::size>::type>;
  __shared__ Set set;
  const Tiles<Index>& tiles = params.tiles;
  const Index block = blockIdx.x;
  const Index higher = quotient(block, tiles.along_rows);
  const Index outer = quotient(higher, tiles.along_columns);
  const Index x0 = (block - higher * tiles.along_rows.divisor) * kRows;
  const Index y0 = (higher - outer * tiles.along_columns.divisor) * kTileColumns;
  const Place<Index> place = {tiles.rows - x0, tiles.columns - y0, tiles.rows,
                              x0 + tiles.rows * (y0 + tiles.columns * outer)};
  set.fill(params.of, place);
  __syncthreads();
  constexpr int kVectors = kRows / kWidth;
#pragma unroll 2
  for (int k = threadIdx.x; k < kVectors * kTileColumns; k += kThreads) {
    const int x = k % kVectors * kWidth;
    const int y = k / kVectors;
    if (x >= place.rows || y >= place.columns) continue;
    const Index i = place.first + x + y * place.step;
    typename B::template Loaded<kWidth> in;
    typename B::template Stored<kWidth> out;
    B::template load_all<kWidth, M>(params.of, i, in);
    set.template read<kWidth>(x, y, in);
    B::template compute<kWidth>(in, out);
    B::template store_all<kWidth>(params.of, i, out);
  }
}

}  // namespace onnxopt
