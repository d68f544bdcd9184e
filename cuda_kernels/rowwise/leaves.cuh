// What a rowwise kernel with index operations reads: inputs behind guards, and conditions on the index.
//
// Letters of a variant: an input that is read by the column (K) or dense in each row (D) may have guards that are told
// by the position in the row, one at most, or that are the same for a whole row; K and D are these conditions' letters.
#pragma once

#include "device/load.cuh"
#include "device/shifted.cuh"
#include "rowwise/abi.h"

namespace onnxopt {

template <typename Op, int kWidth, char... kModes>
struct RowLeaves {
  using M = Modes<kModes...>;
  using Forms = typename Op::Forms;
  static constexpr int kAccesses = sizeof(Op::guards) / sizeof(Op::guards[0]);
  static constexpr int kConditions = static_cast<int>(sizeof...(kModes)) - kAccesses;

  static constexpr unsigned with_letter(unsigned guards, char letter) {
    unsigned found = 0;
    for (int c = 0; c < kConditions; ++c) {
      if ((guards >> c & 1u) && M::at[kAccesses + c] == letter) found |= 1u << c;
    }
    return found;
  }

  // Whether an input's guards are told by the column, one of them at most, and by the row.
  static constexpr bool is_part(int input, unsigned guards) {
    const unsigned places = with_letter(guards, access_mode::kByColumn);
    return (M::at[input] == access_mode::kByColumn || M::at[input] == access_mode::kDense) &&
           (places & (places - 1)) == 0 && (places | with_letter(guards, access_mode::kDense)) == guards;
  }

  template <int kCondition, typename P, typename Index>
  __device__ static bool holds(const P& params, Index i) {
    constexpr int kForm = kAccesses + kCondition;
    constexpr Index kLow = static_cast<Index>(Op::low[kCondition]);
    constexpr Index kExtent = static_cast<Index>(Op::extent[kCondition]);
    return static_cast<Index>(Forms::template at<kForm>(params, i) - kLow) < kExtent;
  }

  template <unsigned kGuards, int kCondition = 0, typename P, typename Index>
  __device__ static bool all_hold(const P& params, Index i) {
    if constexpr ((kGuards >> kCondition) == 0) {
      return true;
    } else if constexpr ((kGuards >> kCondition & 1u) == 0) {
      return all_hold<kGuards, kCondition + 1>(params, i);
    } else {
      return holds<kCondition>(params, i) && all_hold<kGuards, kCondition + 1>(params, i);
    }
  }

  // Whether a condition holds, for every element of the vector at element i of the domain, k of its row.
  template <int kCondition, typename T, typename P, typename Index>
  __device__ static Vector<T, kWidth> evaluate(const P& params, Index i, Index k) {
    constexpr char kLetter = M::at[kAccesses + kCondition];
    Vector<T, kWidth> all;
    if constexpr (kLetter == access_mode::kByColumn) {
      constexpr Index kLow = static_cast<Index>(Op::low[kCondition]);
      constexpr Index kExtent = static_cast<Index>(Op::extent[kCondition]);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) all.at[j] = k + static_cast<Index>(j) - kLow < kExtent;
    } else if (kLetter == access_mode::kDense || (params.input[kAccesses + kCondition].flags & kCell)) {
      return splat<T, kWidth>(holds<kCondition>(params, i));
    } else {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) all.at[j] = holds<kCondition>(params, static_cast<Index>(i + j));
    }
    return all;
  }

  // A part of a row: what lies outside of it is not read, and arbitrary. base: where the row begins.
  template <int kInput, typename T, typename P, typename Index>
  __device__ static Vector<T, kWidth> load_part(const P& params, Index i, Index k, Index base) {
    constexpr unsigned kPlace = with_letter(Op::guards[kInput], access_mode::kByColumn);
    using SignedIndex = typename Signed<Index>::type;
    const Input<Index>& input = params.input[kInput];
    const T* data = static_cast<const T*>(params.data[kInput]);
    if constexpr (M::at[kInput] == access_mode::kDense) data += static_cast<SignedIndex>(base);
    Vector<T, kWidth> none = splat<T, kWidth>(T{});
    if (!all_hold<Op::guards[kInput] & ~kPlace>(params, i)) return none;
    if constexpr (kPlace == 0) {
      const Index columns = static_cast<Index>(params.columns);
      const bool whole = (input.flags & kInner) && k % kWidth == 0 && k < columns && columns - k >= kWidth;
      return whole ? load_vector<T, kWidth>(data + k) : load_across<T, kWidth>(data, k, columns);
    } else {
      constexpr long long kLow = Op::low[lowest(kPlace)];
      constexpr long long kLength = Op::extent[lowest(kPlace)];
      constexpr Index kExtent = static_cast<Index>(kLength);
      const Index at = k - static_cast<Index>(kLow);
      data += kLow;
      if constexpr (kLow % kWidth == 0 && kLength % kWidth == 0) {
        if ((input.flags & kInner) && static_cast<Index>(at % kWidth) == 0) {
          return at < kExtent ? load_vector<T, kWidth>(data + at) : none;
        }
      }
      constexpr Index kOthers = kWidth - 1;
      return at + kOthers < kExtent + kOthers ? load_across<T, kWidth>(data, at, kExtent) : none;
    }
  }

  static constexpr int lowest(unsigned bits) {
    int k = 0;
    while ((bits >> k & 1u) == 0) ++k;
    return k;
  }

  // Where a guard does not hold nothing is read.
  template <int kInput, typename T, typename P, typename Index>
  __device__ static Vector<T, kWidth> load_guarded(const P& params, Index i) {
    const Input<Index>& input = params.input[kInput];
    Vector<T, kWidth> loaded = splat<T, kWidth>(T{});
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const Index at = static_cast<Index>(i + j);
      if (all_hold<Op::guards[kInput]>(params, at)) {
        loaded.at[j] = static_cast<const T*>(params.data[kInput])[offset<Forms, kInput, access_mode::kAny>(params, at)];
      }
    }
    return loaded;
  }

  // A condition, or an input behind guards.
  template <int kInput, typename T, typename P, typename Index>
  __device__ static Vector<T, kWidth> load(const P& params, Index i, Index k, Index base) {
    if constexpr (kInput >= kAccesses) {
      return evaluate<kInput - kAccesses, T>(params, i, k);
    } else if constexpr (is_part(kInput, Op::guards[kInput])) {
      return load_part<kInput, T>(params, i, k, base);
    } else {
      return load_guarded<kInput, T>(params, i);
    }
  }
};

}  // namespace onnxopt
