// Where an input's element for a domain index lies (abi.h states the map).
#pragma once

#include "abi.h"
#include "dtypes.cuh"

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

// How an input relates to the domain; the letters are those of onnxopt/regions.py's Variant.
constexpr char kModeFlat = 'F';
constexpr char kModeScalar = 'S';
constexpr char kModeRow = 'R';
constexpr char kModeColumn = 'C';
constexpr char kModeTwoTerms = 'T';
constexpr char kModeAny = '*';

template <char kMode, typename Index>
__device__ inline Index offset(const Input<Index>& input, Index i) {
  if constexpr (kMode == kModeFlat) {
    return i;
  } else if constexpr (kMode == kModeScalar) {
    return 0;
  } else if constexpr (kMode == kModeRow) {
    return remainder(i, input.term[0].mod);
  } else if constexpr (kMode == kModeColumn) {
    return remainder(quotient(i, input.term[0].div), input.term[0].mod);
  } else if constexpr (kMode == kModeTwoTerms) {
    return offset_in_term(input.term[0], i) + offset_in_term(input.term[1], i);
  } else {
    Index sum = 0;
#pragma unroll
    for (int t = 0; t < kMaxTerms; ++t) {
      if (t < input.terms) sum += offset_in_term(input.term[t], i);
    }
    return sum;
  }
}

}  // namespace onnxopt
