// Where an input's element for a domain index lies (abi.h states the map).
#pragma once

#include "device/abi.h"
#include "device/access_modes.h"
#include "device/dtypes.cuh"

namespace onnxopt {

__device__ inline uint32_t quotient(uint32_t n, const Divisor<uint32_t>& d) {
  return (__umulhi(n, d.multiplier) + n) >> d.shift;
}

// Not inlined: 64-bit division is long, and only tensors of 2^31 elements and more come here.
__device__ __noinline__ uint64_t quotient(uint64_t n, const Divisor<uint64_t>& d) { return n / d.divisor; }

template <typename Index>
__device__ inline Index remainder(Index n, const Divisor<Index>& d) {
  return n - quotient(n, d) * d.divisor;
}

template <typename Index>
__device__ inline Index offset_in_term(const Term<Index>& term, Index i) {
  return remainder(quotient(i, term.div), term.mod) * term.stride;
}

// How an input relates to the domain. The modes are those of device/access_modes.h: capital letters promise that
// a vector lies whole in one cell, neighbours in memory or one element for all; small letters are read element by
// element.
constexpr bool is_flat(char mode) { return mode == access_mode::kFlat; }
constexpr bool is_scalar(char mode) { return mode == access_mode::kScalar; }
constexpr bool is_any(char mode) { return mode == access_mode::kAny; }
constexpr bool is_neighbours(char mode) {
  return mode == access_mode::kRun || mode == access_mode::kRun2 || mode == access_mode::kRunAny;
}
constexpr bool is_cell(char mode) {
  return mode == access_mode::kCell || mode == access_mode::kCell2 || mode == access_mode::kCellAny;
}
constexpr bool is_interleaved(char mode) { return mode == access_mode::kInterleaved; }
constexpr bool is_transposed(char mode) {
  return mode == access_mode::kColumn || mode == access_mode::kColumn8 || mode == access_mode::kColumn16 ||
         mode == access_mode::kColumnShifted;
}
constexpr bool is_row(char mode) { return mode == access_mode::kRun || mode == access_mode::kSplitRun; }
constexpr bool is_column(char mode) { return mode == access_mode::kCell || mode == access_mode::kSplitCell; }
constexpr bool is_two_terms(char mode) {
  return mode == access_mode::kRun2 || mode == access_mode::kCell2 || mode == access_mode::kSplit2;
}
// Conditions: the same for a whole vector, or not.
constexpr bool is_uniform(char mode) { return mode == access_mode::kUniform; }

template <typename Index>
__device__ inline Index sum_of_terms(const Term<Index>* term, unsigned int terms, Index i) {
  Index sum = 0;
#pragma unroll 1
  for (unsigned int t = 0; t < terms; ++t) sum += offset_in_term(term[t], i);
  return sum;
}

template <typename Index>
struct Signed;

template <>
struct Signed<uint32_t> {
  using type = int32_t;
};

template <>
struct Signed<uint64_t> {
  using type = int64_t;
};

// The functions below ask a generated Op. Where it says kSpelled, it has the forms of its accesses, then those of its
// conditions, by their numbers:
//     at<kForm>(params, i)         the sum of the terms
//     across<kAccess>(params, i)   of an access that tiles read along columns, the same for an i below the rows' number
//     stretch<kAccess>(params, i)  how the access goes on from i
//     known_step[kAccess]          the step of that where it is 0 (a cell) or 1, else -1
// Else the host's terms are added up, and there are no conditions.

// Stands for an Op that spells nothing.
struct AnyTerms {
  static constexpr bool kSpelled = false;
};

// Offsets of sums may be below 0; the others would lose range as signed numbers.
template <typename Op, int kAccess, char kMode, typename P, typename Index>
__device__ inline auto offset(const P& params, Index i) {
  using SignedIndex = typename Signed<Index>::type;
  if constexpr (is_flat(kMode)) {
    return i;
  } else if constexpr (is_scalar(kMode)) {
    return Index{0};
  } else if constexpr (Op::kSpelled) {
    return static_cast<SignedIndex>(Op::template at<kAccess>(params, i));
  } else {
    const Input<Index>& input = params.input[kAccess];
    if constexpr (is_row(kMode)) {
      return remainder(i, input.term[0].mod);
    } else if constexpr (is_column(kMode)) {
      return remainder(quotient(i, input.term[0].div), input.term[0].mod);
    } else if constexpr (is_two_terms(kMode)) {
      return static_cast<SignedIndex>(offset_in_term(input.term[0], i) + offset_in_term(input.term[1], i));
    } else {
      return static_cast<SignedIndex>(sum_of_terms(input.term, input.terms, i));
    }
  }
}

// How an access goes on from an index: `left` elements from there on are `step` apart; the next run or cell begins
// behind.
template <typename Index>
struct Stretch {
  Index left;
  Index step;
};

// The step of an access where it is known when generating, 0 for the one element of a cell; else -1.
template <typename Op, int kAccess, char kMode>
constexpr int known_step() {
  if constexpr (Op::kSpelled) {
    return Op::known_step[kAccess];
  } else {
    return kMode == access_mode::kSplitCell ? 0 : kMode == access_mode::kSplitRun ? 1 : -1;
  }
}

template <typename Op, int kAccess, char kMode, typename P, typename Index>
__device__ inline Stretch<Index> stretch(const P& params, Index i) {
  if constexpr (Op::kSpelled) {
    return Op::template stretch<kAccess>(params, i);
  } else {
    const Term<Index>& inner = params.input[kAccess].term[0];
    const bool is_run = known_step<Op, kAccess, kMode>() < 0 ? inner.div.divisor == 1 : kMode == access_mode::kSplitRun;
    const Divisor<Index> period = is_run ? inner.mod : inner.div;
    return {period.divisor - remainder(i, period), is_run ? inner.stride : 0};
  }
}

template <typename Op, int kCondition, typename P, typename Index>
__device__ inline bool holds(const P& params, Index i) {
  const IndexRange<Index>& condition = params.condition[kCondition];
  return static_cast<Index>(Op::template at<Op::Inputs::size + kCondition>(params, i) - condition.low) <
         condition.extent;
}

}  // namespace onnxopt
