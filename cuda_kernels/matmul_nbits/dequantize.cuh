// Weights of 2, 4 or 8 bits as floats, for products of many rows: a block for each column.
#pragma once

#include "device/early_launch.cuh"
#include "device/vector.cuh"
#include "matmul_nbits/abi.h"
#include "matmul_nbits/factors.cuh"

namespace onnxopt {

// A thread takes words of codes, which groups are multiples of and rows end with.
template <typename T, int kBits, int kGroup, Zeros kZeros, int kThreads>
__device__ inline void dequantize_nbits(const DequantizeParams& p) {
  constexpr unsigned kOfWord = 32 / kBits;
  const unsigned column = blockIdx.x;
  const unsigned words = p.groups * (kGroup / kOfWord);
  const uint32_t* const b = static_cast<const uint32_t*>(p.b) + static_cast<uint64_t>(column) * words;
  T* const y = static_cast<T*>(p.output) + static_cast<uint64_t>(column) * p.depth;
  begin_early();
#pragma unroll 4
  for (unsigned word = threadIdx.x; word * kOfWord < p.depth; word += kThreads) {
    const uint32_t codes = b[word];
    const unsigned group = word * kOfWord / kGroup;
    GroupFloats<T, 1> scale;
    scale.load(p.scales, column, group, p.groups);
    GroupZeros<T, kBits, 1, kZeros> zero;
    zero.load(p.zeros, column, group, p.groups);
    Vector<T, kOfWord> floats;
#pragma unroll
    for (int j = 0; j < static_cast<int>(kOfWord); ++j) {
      const float code = static_cast<float>(codes >> (kBits * j) & ((1u << kBits) - 1)) - kMiddle<kBits>;
      floats.at[j] = Narrow<T>::from((code + zero.below_middle(0)) * scale.at(0));
    }
    store_vector(y + word * kOfWord, floats);
  }
}

}  // namespace onnxopt
