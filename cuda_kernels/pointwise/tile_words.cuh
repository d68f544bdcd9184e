// One input of a tile whose elements are smaller than a word of shared memory: they are turned on their way there, so
// that nothing is read or written in pieces of a word.
//
// A thread loads as many rows of the tile as a word has elements, a vector of each, and exchanges them in registers: a
// word then has neighbours along the rows, of one column. Columns lie one behind the other, each of an odd number of
// words, and every 32 of them four words further: threads that write down a column and threads that read along one
// find their words in different banks.
#pragma once

#include "device/shifted.cuh"
#include "pointwise/tile_column.cuh"

namespace onnxopt {

// Exchanges bytes or halves: `words` are rows of kCount elements; behind, they are the columns.
template <int kCount>
__device__ inline void turn(uint32_t (&words)[kCount]) {
  if constexpr (kCount == 2) {
    const uint32_t low = __byte_perm(words[0], words[1], 0x5410);
    words[1] = __byte_perm(words[0], words[1], 0x7632);
    words[0] = low;
  } else {
    const uint32_t even = __byte_perm(words[0], words[1], 0x5140);  // a0 b0 a1 b1
    const uint32_t odd = __byte_perm(words[2], words[3], 0x5140);
    const uint32_t next_even = __byte_perm(words[0], words[1], 0x7362);
    const uint32_t next_odd = __byte_perm(words[2], words[3], 0x7362);
    words[0] = __byte_perm(even, odd, 0x5410);
    words[1] = __byte_perm(even, odd, 0x7632);
    words[2] = __byte_perm(next_even, next_odd, 0x5410);
    words[3] = __byte_perm(next_even, next_odd, 0x7632);
  }
}

// A vector that lies aligned, to be read as Unaligned ones are.
template <typename T, int kWidth>
struct AlignedWords {
  Vector<T, kWidth> vector;

  __device__ void load(const T* from, unsigned) { vector = load_vector<T, kWidth>(from); }
  __device__ uint32_t part(int w) const { return word(vector, w); }
};

template <typename T, typename S>
struct SharedWords {
  static constexpr int kPer = 4 / sizeof(T);
  static constexpr int kPitch = (S::kHeld + kPer - 1) / kPer | 1;
  // One word behind the last column may be read with it.
  uint32_t words[S::kColumns * kPitch + (S::kColumns - 1) / 32 * 4 + 1];

  // The first word of a column.
  __device__ static constexpr int column(int y) { return y * kPitch + y / 32 * 4; }

  __device__ T& element(int x, int y) { return reinterpret_cast<T*>(words + column(y))[x]; }

  // kWidth elements from (x, y) on, along the rows.
  template <int kWidth>
  __device__ Vector<T, kWidth> across(int x, int y) const {
    constexpr int kWords = kWidth * static_cast<int>(sizeof(T)) / 4;
    Vector<T, kWidth> read;
    if constexpr (kWords == 0) {
      const T* const from = reinterpret_cast<const T*>(words + column(y)) + x;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) read.at[j] = from[j];
    } else {
      const uint32_t* const from = words + column(y) + x / kPer;
      const unsigned bits = S::kSlack > 0 ? x % kPer * (8 * static_cast<unsigned>(sizeof(T))) : 0;
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        word(read, w) = S::kSlack > 0 ? __funnelshift_r(from[w], from[w + 1], bits) : from[w];
      }
    }
    return read;
  }
};

// As Column of tile_column.cuh. Vectors of mode z are read wherever the row begins.
template <typename Op, int kInput, typename T, char kMode, typename S>
struct ColumnWords {
  using Tiled = SharedWords<T, S>;
  static constexpr int kPer = Tiled::kPer;
  static constexpr int kWidth = elements_along<T>(kMode);
  static constexpr int kVectors = S::kColumns / kWidth;
  static constexpr int kAll = (S::kHeld + kPer - 1) / kPer * kVectors;
  static constexpr int kLoads = (kAll + S::kThreads - 1) / S::kThreads;
  static_assert(S::kColumns % kWidth == 0, "vectors fill the rows");
  using Read = typename Either<is_shifted(kMode), Unaligned<T, kWidth>, AlignedWords<T, kWidth>>::type;
  Read held[kLoads][kPer];

  template <typename P, typename Index>
  __device__ void load(const P& params, const Place<Index>& place) {
    const Input<Index>& input = params.input[kInput];
    const auto column = offset<Op, kInput, access_mode::kRunAny>(params, place.base);
#pragma unroll
    for (int n = 0; n < kLoads; ++n) {
      const unsigned int k = threadIdx.x + n * S::kThreads;
      const int y = static_cast<int>(k % kVectors) * kWidth;
#pragma unroll
      for (int r = 0; r < kPer; ++r) {
        const int row = static_cast<int>(k / kVectors) * kPer + r;
        const Index x = place.x0 + row - S::kSlack;
        if (row >= S::kHeld || x >= place.rows || y >= static_cast<int>(place.columns)) continue;
        const auto start = column + offset_across<Op, kInput>(params, x) + y;
        const Source<T> source = source_along<Op, kInput, kMode, kWidth, T>(params, place, x, y);
        if (source.inside) held[n][r].load(source.data + start, static_cast<unsigned>(place.left) - y);
      }
    }
  }

  template <typename P, typename Index>
  __device__ void store(Tiled& tile, const P& params, const Place<Index>& place) const {
#pragma unroll
    for (int n = 0; n < kLoads; ++n) {
      const unsigned int k = threadIdx.x + n * S::kThreads;
      if (kAll % S::kThreads != 0 && k >= kAll) continue;
      const int y = static_cast<int>(k % kVectors) * kWidth;
      uint32_t* const to = tile.words + Tiled::column(y) + k / kVectors;
#pragma unroll
      for (int w = 0; w < kWidth / kPer; ++w) {
        uint32_t block[kPer];
#pragma unroll
        for (int r = 0; r < kPer; ++r) block[r] = held[n][r].part(w);
        turn(block);
#pragma unroll
        for (int c = 0; c < kPer; ++c) to[(w * kPer + c) * Tiled::kPitch] = block[c];
      }
      if constexpr (is_shifted(kMode)) {
        if (y + Read::kReach > static_cast<int>(place.left))
          store_last(tile, params, place, static_cast<int>(k / kVectors) * kPer, y);
      }
    }
  }

 private:
  // The last columns that there are, where a word that has them would reach behind them.
  template <typename P, typename Index>
  __device__ static void store_last(Tiled& tile, const P& params, const Place<Index>& place, int row, int y) {
    const Input<Index>& input = params.input[kInput];
    const T* const data =
        static_cast<const T*>(params.data[kInput]) + offset<Op, kInput, access_mode::kRunAny>(params, place.base);
#pragma unroll
    for (int r = 0; r < kPer; ++r) {
      const Index x = place.x0 + row + r - S::kSlack;
#pragma unroll
      for (int back = 1; back < kPer; ++back) {
        const int last = static_cast<int>(place.left) - back;
        if (row + r < S::kHeld && x < place.rows && last >= y && last < y + kWidth) {
          tile.element(row + r, last) = data[offset_across<Op, kInput>(params, x) + last];
        }
      }
    }
  }
};

// Whether an input goes through shared memory in words: bytes, and halves that do not lie aligned. Where guards end,
// whole words are not there.
template <typename Op, int kInput, typename T, char kMode, typename S>
constexpr bool goes_in_words() {
  constexpr bool kSmall = sizeof(T) == 1 ? kMode != access_mode::kColumn : sizeof(T) == 2 && is_shifted(kMode);
  return kSmall && !S::kWhole && S::kColumns >= 16 && (!is_shifted(kMode) || Op::guards[kInput] == 0);
}

}  // namespace onnxopt
