// Where the elements lie that a kernel reads, as the host hands it over. Shared by the kernels (NVRTC) and the
// custom-op library (g++): plain data, no includes from outside, so that both sides read one definition.
//
// The domain is the shape of the outputs, flattened row-major; outputs are contiguous over it. The element an input
// contributes to domain element i lies at
//     offset(i) = sum over its terms of ((i / div) mod mod) * stride
// from its data, where a term is a maximal run of neighbouring dims that the input is read along in equal steps. No
// term: one element for all. A kernel with index operations reads one tensor through several inputs, with strides below
// 0 too, and conditions on the index say where there is anything to read.
//
// The last term of an input that is looked up (Gather) is no part of the sum: the divisor of its mod is the size of the
// dim that is indexed, and its stride is that of the dim.
#pragma once

namespace onnxopt {

constexpr int kMaxTerms = 6;  // enough for 12 dims that alternate between broadcast and not

// Flags of an input, set by the host for the launch at hand.
constexpr unsigned kFlat = 1;   // offset(i) == i and data is aligned to a vector: load vectors
constexpr unsigned kCell = 2;   // a vector never straddles two cells: div and mod of every term are multiples of it
constexpr unsigned kInner = 4;  // with kCell: the last term has div 1 and data is aligned: load vectors, not splats

// Unsigned division by a run-time constant. 32 bit: n / divisor == (mulhi(n, multiplier) + n) >> shift for n < 2^31.
template <typename Index>
struct Divisor;

template <>
struct Divisor<unsigned int> {
  unsigned int divisor;
  unsigned int multiplier;
  unsigned int shift;
};

template <>
struct Divisor<unsigned long long> {
  unsigned long long divisor;
};

template <typename Index>
struct Term {
  Divisor<Index> div;
  Divisor<Index> mod;
  Index stride;  // below 0 in two's complement
};

template <typename Index>
struct Input {
  const void* data;
  unsigned int terms;
  unsigned int flags;
  Term<Index> term[kMaxTerms];
};

// Holds where 0 <= sum of the terms - low < extent.
template <typename Index>
struct IndexRange {
  Index low;
  Index extent;
  unsigned int terms;
  unsigned int unused;
  Term<Index> term[kMaxTerms];
};

}  // namespace onnxopt
