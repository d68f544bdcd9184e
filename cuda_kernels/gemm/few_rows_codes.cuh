// Operands of a product of few rows that are 8-bit floats. Apart from others, because only codes tell compute
// capability 8.9 from 8.6.
#pragma once

#include "device/narrow_float8.cuh"
#include "gemm/few_rows_products.cuh"

namespace onnxopt {

// A part is one step: a lane has four neighbouring elements, of which the first two count as the part's first half.
struct CodeOperands {
  using Stored = float8e4m3fn;
  using Multiplied = float16;
  static constexpr int kSteps = 1;

  __device__ static void widen_word(uint32_t word, uint32_t& low, uint32_t& high) {
    low = halves_of(static_cast<uint16_t>(word));
    high = halves_of(static_cast<uint16_t>(word >> 16));
  }

  __device__ static void load(const float8e4m3fn* from, unsigned left, uint32_t (&x)[2]) {
    const uint32_t word = left > 0 ? *reinterpret_cast<const uint32_t*>(from) : 0;
    widen_word(word, x[0], x[1]);
  }

  // Of step `of` of two.
  __device__ static void widen(const uint32_t (&words)[4], int of, uint32_t (&weight)[4]) {
    widen_word(words[2 * of], weight[0], weight[2]);
    widen_word(words[2 * of + 1], weight[1], weight[3]);
  }
};

}  // namespace onnxopt
