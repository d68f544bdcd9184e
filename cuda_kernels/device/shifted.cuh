// Vectors that lie across two aligned ones: both are loaded, and shifted together in registers.
#pragma once

#include "device/index.cuh"
#include "device/vector.cuh"

namespace onnxopt {

// The words of two neighbouring vectors, moved down by `bytes` (below the size of one): the lower half is what lies
// there.
template <int kWords>
__device__ inline void shift_down(uint32_t (&words)[2 * kWords], unsigned bytes) {
#pragma unroll
  for (int step = kWords / 2; step > 0; step /= 2) {
    const bool moves = (bytes / 4 & step) != 0;
#pragma unroll
    for (int w = 0; w < 2 * kWords - step; ++w) words[w] = moves ? words[w + step] : words[w];
  }
  const unsigned bits = bytes % 4 * 8;
#pragma unroll
  for (int w = 0; w < kWords; ++w) words[w] = __funnelshift_r(words[w], words[w + 1], bits);
}

// The vector at `from`, of which `left` elements are there: a part of one is loaded element by element.
template <typename T, int kWidth, typename Index>
__device__ inline Vector<T, kWidth> load_beginning(const T* from, Index left) {
  if (left >= kWidth) return load_vector<T, kWidth>(from);
  Vector<T, kWidth> part;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    if (static_cast<Index>(j) < left) part.at[j] = from[j];
  }
  return part;
}

// kWidth elements smaller than a word, wherever they begin: the words that hold them, to be shifted together once all
// loads are under way.
template <typename T, int kWidth>
struct Unaligned {
  static constexpr int kPer = 4 / sizeof(T);
  static constexpr int kWords = kWidth / kPer;
  static constexpr int kReach = kWidth + kPer;  // elements from the first on that are touched at most
  static_assert(sizeof(T) < 4 && kWidth % kPer == 0, "whole words");
  uint32_t words[kWords + 1];
  unsigned bits;

  // Only those words that hold nothing behind the `left` elements at `from`.
  __device__ void load(const T* from, unsigned left) {
    const unsigned before = static_cast<unsigned>(reinterpret_cast<uint64_t>(from)) % 4 / sizeof(T);
    const uint32_t* const first = reinterpret_cast<const uint32_t*>(from - before);
    const unsigned whole = (before + left) / kPer;
    bits = before * (8 * sizeof(T));
#pragma unroll
    for (int w = 0; w <= kWords; ++w) {
      if (static_cast<unsigned>(w) < whole) words[w] = first[w];
    }
  }

  __device__ void hold(const Vector<T, kWidth>& vector) {
    bits = 0;
#pragma unroll
    for (int w = 0; w < kWords; ++w) words[w] = word(vector, w);
    words[kWords] = 0;
  }

  // Four bytes, or two halves, of the elements.
  __device__ uint32_t part(int w) const { return __funnelshift_r(words[w], words[w + 1], bits); }
};

// Elements k .. k + kWidth - 1 of the `columns` at `data`, which need not be aligned to more than an element. Of those
// outside (k may wrap below 0) the values are arbitrary. Nothing is loaded but aligned vectors that hold one of the
// columns, and nothing behind the last one: near it, element by element. next_inside: whether it is known that kWidth
// more columns follow.
template <typename T, int kWidth, typename Index>
__device__ inline Vector<T, kWidth> load_across(const T* data, Index k, Index columns, bool next_inside = false) {
  using Whole = Vector<T, kWidth>;
  constexpr unsigned kBytes = sizeof(Whole);
  Whole result;
  if (kWidth == 1 || kBytes % 4 != 0 || !(next_inside || k + 2 * kWidth <= columns)) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      if (k + static_cast<Index>(j) < columns) result.at[j] = data[k + j];
    }
  } else if constexpr (kBytes % 4 == 0) {
    const unsigned bytes = static_cast<unsigned>(reinterpret_cast<uint64_t>(data) + k * sizeof(T)) % kBytes;
    const auto low = static_cast<typename Signed<Index>::type>(k - bytes / sizeof(T));  // where the lower one begins
    union {
      Whole whole[2];
      uint32_t words[kBytes / 2];
    };
    whole[0] = load_vector<T, kWidth>(data + (low + kWidth > 0 ? low : low + kWidth));
    whole[1] = load_vector<T, kWidth>(data + (low + kWidth));
    shift_down<kBytes / 4>(words, bytes);
    result = whole[0];
  }
  return result;
}

}  // namespace onnxopt
