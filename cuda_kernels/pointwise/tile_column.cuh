// One input of a tile: how it is read along the columns, and how it lies in shared memory.
//
// A row of shared memory is a column of the tile and has an odd number of words, so that threads which read across rows
// find them in different banks. What a thread has loaded goes there a word at a time.
//
// Vectors of mode z are aligned ones, wherever the row of the input begins: they are stored as far back as the row
// begins behind the first of them. Elements of 4 bytes and more then lie where they would without that; smaller ones
// keep their place in a word, and whoever reads them adds it (Skew).
#pragma once

#include "pointwise/pointwise.cuh"

namespace onnxopt {

// kSlack: rows that are held before those that are stored.
template <int kRowsOf, int kColumnsOf, int kThreadsOf, bool kWholeOf, int kSlackOf>
struct Tile {
  static constexpr int kRows = kRowsOf;
  static constexpr int kColumns = kColumnsOf;
  static constexpr int kThreads = kThreadsOf;
  static constexpr bool kWhole = kWholeOf;
  static constexpr int kSlack = kSlackOf;
  static constexpr int kHeld = kRows + kSlack;
};

// Of a tile in the domain. Element (x, y) of the tile is domain element base + x0 + x + y * rows.
template <typename Index>
struct Place {
  Index x0;
  Index rows;     // of the domain
  Index columns;  // in this tile
  Index left;     // columns of the domain from the tile's first on
  Index base;
};

constexpr bool is_shifted(char mode) { return mode == access_mode::kColumnShifted; }

// How many elements of an input one load has along the columns: 16 bytes of modes Z and z, 8 of Y, one element of X.
template <typename T>
constexpr int elements_along(char mode) {
  return mode == access_mode::kColumn ? 1 : (mode == access_mode::kColumn8 ? 8 : 16) / sizeof(T);
}

template <int kBytes>
struct Word {
  using type = uint32_t;
};

template <>
struct Word<8> {
  using type = uint64_t;
};

// How far the elements of row x lie behind where they would if the row began at a word, in elements: by turns, as the
// rows are one term of the index, or all of their strides are whole words (the host sees to that).
template <typename T, char kMode>
struct Skew {
  static constexpr int kTurns = is_shifted(kMode) && sizeof(T) < 4 ? 4 / sizeof(T) : 1;
  uint32_t start = 0;
  uint32_t stride = 0;

  template <typename Op, int kInput, typename S, typename P, typename Index>
  __device__ static Skew of(const P& params, const Place<Index>& place) {
    Skew skew;
    if constexpr (kTurns > 1) {
      const Input<Index>& input = params.input[kInput];
      skew.stride = static_cast<uint32_t>(input.term[0].stride);
      skew.start = static_cast<uint32_t>(reinterpret_cast<uint64_t>(params.data[kInput]) / sizeof(T)) +
                   static_cast<uint32_t>(offset<Op, kInput, access_mode::kRunAny>(params, place.base)) +
                   (static_cast<uint32_t>(place.x0) - S::kSlack) * skew.stride;
    }
    return skew;
  }

  __device__ int at(int x) const { return static_cast<int>((start + static_cast<uint32_t>(x) * stride) % kTurns); }
};

// A tile in shared memory. Its rows lie one behind the other; where they are short, its columns do instead, or threads
// that read across rows would meet in a few banks.
template <char kMode, typename T, typename S>
struct Shared {
  using WordType = typename Word<sizeof(T)>::type;
  static constexpr int kWord = sizeof(WordType);
  static constexpr int kElement = sizeof(T);
  static constexpr bool kByColumns = S::kColumns < 16;
  static constexpr int kBefore = is_shifted(kMode) ? 16 : 0;  // bytes; a shifted vector begins less before the row
  static constexpr int kBehind = is_shifted(kMode) ? 16 + kWord : 0;
  static constexpr int kRowBytes = kBefore + S::kColumns * kElement + kBehind;
  static constexpr int kPitch = ((kRowBytes + kWord - 1) / kWord | 1) * kWord;
  static constexpr int kStep = (S::kHeld + 15) / 16 * 16 + 16;  // by columns: elements from one to the next
  alignas(16) unsigned char bytes[kByColumns ? S::kColumns * kStep * kElement : S::kHeld * kPitch];

  // Where element (x, y) lies, in bytes.
  __device__ static constexpr int place(int x, int y) {
    return kByColumns ? (y * kStep + x) * kElement : x * kPitch + kBefore + y * kElement;
  }

  __device__ T& element(int at) { return *reinterpret_cast<T*>(bytes + at); }
  __device__ const T& element(int at) const { return *reinterpret_cast<const T*>(bytes + at); }

  // kWidth elements from (x, y) on, along the rows; those of a whole tile go on in the next column.
  template <int kWidth>
  __device__ Vector<T, kWidth> across(int x, int y, const Skew<T, kMode>& skew) const {
    constexpr int kTurns = Skew<T, kMode>::kTurns;
    Vector<T, kWidth> read;
    if constexpr (kByColumns && !S::kWhole && S::kSlack == 0 && sizeof(T) * kWidth <= 16) {
      read = load_vector<T, kWidth>(&element(place(x, y)));
    } else if constexpr (S::kWhole) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        read.at[j] = element(place(x, y) + skew.at(x) * kElement);
        const bool ends = ++x == S::kRows;
        x = ends ? 0 : x;
        y = ends ? y + 1 : y;
      }
    } else {
      int row[kTurns];
#pragma unroll
      for (int j = 0; j < kTurns; ++j) row[j] = place(x, y) + skew.at(x + j) * kElement;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) read.at[j] = element(row[j % kTurns] + (place(j, 0) - place(0, 0)));
    }
    return read;
  }
};

template <typename Op, typename P, typename Index, int... C>
__device__ inline bool all_hold(const P& params, unsigned guards, Index i, Indices<C...>) {
  return ((!(guards >> C & 1U) || holds<Op, C>(params, i)) && ...);
}

// Whether each of these conditions holds at one of two places at least: as it holds over a range that is no shorter
// than what lies between them (the host sees to that), somewhere there all of them do, or none is asked for.
template <typename Op, typename P, typename Index, int... C>
__device__ inline bool all_hold_at_either(const P& params, unsigned guards, Index i, Index j, Indices<C...>) {
  return ((!(guards >> C & 1U) || holds<Op, C>(params, i) || holds<Op, C>(params, j)) && ...);
}

// What the rows contribute to an offset: x is below the number of rows, so that the outermost digit needs no remainder.
template <typename Op, int kInput, typename P, typename Index>
__device__ inline auto offset_across(const P& params, Index x) {
  return static_cast<typename Signed<Index>::type>(Op::template across<kInput>(params, x));
}

// Where the elements from (x, y) on, kWidth along the columns, are read from, if they are; x counts in the domain.
template <typename Op, int kInput, char kMode, int kWidth, typename T, typename P, typename Index>
__device__ inline Source<T> source_along(const P& params, const Place<Index>& place, Index x, int y) {
  const T* const data = static_cast<const T*>(params.data[kInput]);
  if constexpr (Op::guards[kInput] == 0) {
    return {data, true};
  } else {
    constexpr typename MakeIndices<Op::kConditions>::type kAllConditions;
    const Index column = place.base + x;
    if constexpr (is_shifted(kMode)) {
      const int last = y + kWidth < static_cast<int>(place.columns) ? y + kWidth - 1 : place.columns - 1;
      const Index i = column + (y < 0 ? 0 : y) * place.rows;
      constexpr unsigned kGuards = Op::guards[kInput];  // nvcc has no address for the array
      return {data, all_hold_at_either<Op>(params, kGuards, i, column + last * place.rows, kAllConditions)};
    } else {
      const Index i = column + y * place.rows;
      return source_of<Op, kInput, T>(params,
                                      [&](unsigned guards) { return all_hold<Op>(params, guards, i, kAllConditions); });
    }
  }
}

// What one thread reads of one input along the columns. An offset is the sum of what x and what y contribute: the
// columns are one term, and no other term has digits of both.
template <typename Op, int kInput, typename T, char kMode, typename S>
struct Column {
  using Tiled = Shared<kMode, T, S>;
  static constexpr int kWidth = elements_along<T>(kMode);
  // Where there are fewer columns than elements in a vector, they lie side by side: a vector has all columns of some
  // rows.
  static constexpr int kAlong = kWidth < S::kColumns ? kWidth : S::kColumns;
  static constexpr int kAcross = kWidth / kAlong;
  static constexpr int kVectors = S::kColumns / kAlong + (is_shifted(kMode) ? 1 : 0);  // of a row, or of kAcross rows
  static constexpr int kAll = S::kHeld / kAcross * kVectors;
  static constexpr int kLoads = (kAll + S::kThreads - 1) / S::kThreads;
  static_assert(kLoads <= 32, "bits");
  // Whether nothing behind a row's end is read. With guards that cost a third of the speed: there the aligned vector
  // that holds a tensor's last element is read whole, and what lies behind it is not used.
  static constexpr bool kStopsAtEnds = is_shifted(kMode) && Op::guards[kInput] == 0;
  static_assert(S::kHeld % kAcross == 0, "vectors fill the tile");
  static_assert(kAcross == 1 || (Tiled::kByColumns && !is_shifted(kMode)), "few columns lie one behind the other");
  Vector<T, kWidth> held[kLoads];
  int at[kLoads];         // where it goes in shared memory, below 0 where nothing does
  unsigned int late = 0;  // bits: vectors that reach behind what is there

  template <typename P, typename Index>
  __device__ void load(const P& params, const Place<Index>& place) {
    if (kStopsAtEnds && place.left < static_cast<Index>(S::kColumns + kWidth)) {
      load_each<kStopsAtEnds>(params, place);
    } else {
      load_each<false>(params, place);
    }
  }

  template <typename P, typename Index>
  __device__ void store(Tiled& tile, const P& params, const Place<Index>& place) const {
#pragma unroll
    for (int n = 0; n < kLoads; ++n) {
      if (at[n] >= 0) store_one(tile, n);
    }
    if constexpr (kStopsAtEnds) {
      if (late == 0) return;
#pragma unroll 1
      for (int n = 0; n < kLoads; ++n) {
        if (late >> n & 1U) store_late(tile, n, params, place);
      }
    }
  }

 private:
  // kEnds: whether a vector may reach behind what is there.
  template <bool kEnds, typename P, typename Index>
  __device__ void load_each(const P& params, const Place<Index>& place) {
#pragma unroll
    for (int n = 0; n < kLoads; ++n) {
      const auto spot = spot_of(n, params, place);
      held[n] = splat<T, kWidth>(T{});
      at[n] = spot.there ? spot.at() : -1;
      if (!spot.there) continue;
      const Source<T> source = source_along<Op, kInput, kMode, kWidth, T>(params, place, spot.x, spot.y);
      if (!source.inside) continue;
      if (kEnds && spot.y + kWidth > static_cast<int>(place.left)) {
        late |= 1U << n;
      } else {
        held[n] = load_vector<T, kWidth>(source.data + spot.start + spot.y);
      }
    }
  }

  static constexpr int kNext = Tiled::place(0, 1) - Tiled::place(0, 0);

  // Where load n of this thread lies: `row` of the tile, x and y (of mode z up to a vector below 0) in the domain.
  template <typename Index, typename Offset>
  struct Spot {
    bool there;
    int row;
    Index x;
    int y;
    int shift;     // elements of the aligned vector that lie before the row's first
    Offset start;  // of the row

    __device__ int at() const { return Tiled::place(row, y + shift % Skew<T, kMode>::kTurns); }
  };

  template <typename P, typename Index>
  __device__ static auto spot_of(int n, const P& params, const Place<Index>& place) {
    const Input<Index>& input = params.input[kInput];
    const unsigned int thread = threadIdx.x;
    const unsigned int k = thread + n * S::kThreads;
    constexpr bool kEven = S::kThreads % kVectors == 0;
    const unsigned int line = kEven ? thread / kVectors + n * (S::kThreads / kVectors) : k / kVectors;
    const int row = static_cast<int>(line) * kAcross;
    const Index x = place.x0 + row - S::kSlack;
    const auto start =
        offset<Op, kInput, access_mode::kRunAny>(params, place.base) + offset_across<Op, kInput>(params, x);
    const int shift = is_shifted(kMode) ? shift_of(static_cast<const T*>(params.data[kInput]) + start) : 0;
    const int y = static_cast<int>(kEven ? thread % kVectors : k % kVectors) * kAlong - shift;
    const bool there = (kAll % S::kThreads == 0 || k < kAll) && x < place.rows && y + kAlong > 0 &&
                       y < static_cast<int>(place.columns);
    return Spot<Index, decltype(start + 0)>{there, row, x, y, shift, start};
  }

  // Element by element, what is there.
  template <typename P, typename Index>
  __device__ static void store_late(Tiled& tile, int n, const P& params, const Place<Index>& place) {
    const auto spot = spot_of(n, params, place);
    const T* const row = static_cast<const T*>(params.data[kInput]) + spot.start;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const int y = spot.y + j;
      if (y >= 0 && y < static_cast<int>(place.columns)) tile.element(spot.at() + j * kNext) = row[y];
    }
  }

  __device__ void store_one(Tiled& tile, int n) const {
    if constexpr (kAcross > 1) {
#pragma unroll
      for (int c = 0; c < kAlong; ++c) {
        Vector<T, kAcross> part;
#pragma unroll
        for (int r = 0; r < kAcross; ++r) part.at[r] = held[n].at[r * kAlong + c];
        store_vector(&tile.element(at[n] + c * kNext), part);
      }
    } else if constexpr (Tiled::kByColumns || kWidth * Tiled::kElement < Tiled::kWord) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) tile.element(at[n] + j * kNext) = held[n].at[j];
    } else {
      using WordType = typename Tiled::WordType;
      const WordType* words = reinterpret_cast<const WordType*>(&held[n]);
#pragma unroll
      for (int w = 0; w < static_cast<int>(sizeof(held[n])) / Tiled::kWord; ++w) {
        *reinterpret_cast<WordType*>(tile.bytes + at[n] + w * Tiled::kWord) = words[w];
      }
    }
  }

  // How many elements of the aligned vector that holds an element lie before it.
  __device__ static int shift_of(const T* element) {
    return static_cast<int>(static_cast<uint32_t>(reinterpret_cast<uint64_t>(element) / sizeof(T)) % kWidth);
  }
};

}  // namespace onnxopt
