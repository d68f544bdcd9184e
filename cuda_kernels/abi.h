// What the host hands to a pointwise kernel. Shared by the kernels (NVRTC) and the custom-op library (g++): plain data,
// no includes, so that both sides read one definition.
//
// A kernel's single parameter is Params<Index, inputs, outputs>, passed by value. The domain is the broadcast of all
// inputs, flattened row-major to `count` elements; outputs are contiguous over it. The element an input contributes to
// domain element i lies at
//     offset(i) = sum over its terms of ((i / div) mod mod) * stride
// where a term is a maximal run of neighbouring dims in which the input is not broadcast. No term: one element for all.
#pragma once

namespace onnxopt {

constexpr int kMaxTerms = 4;  // enough for 8 dims that alternate between broadcast and not

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
  Index stride;
};

template <typename Index>
struct Input {
  const void* data;
  unsigned int terms;
  unsigned int flags;
  Term<Index> term[kMaxTerms];
};

// outputs with a null pointer are not written (the host launches once for each distinct output shape).
template <typename Index, int kInputs, int kOutputs>
struct Params {
  unsigned long long count;
  void* output[kOutputs];
  Input<Index> input[kInputs];
};

}  // namespace onnxopt
