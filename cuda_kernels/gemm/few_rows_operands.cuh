// How operands of a product of few rows lie in memory, and become operands of the matrix units: parts of 16 elements.
#pragma once

#include "device/matrix_words.cuh"

namespace onnxopt {

// 16-bit floats: a part is two steps of gemm/weight_chunks.cuh.
template <typename T>
struct FloatOperands {
  using Stored = T;
  using Multiplied = T;
  static constexpr int kSteps = 2;

  // A lane's elements of a part of a, of which `left` elements are there.
  __device__ static void load(const T* from, unsigned left, uint32_t (&x)[2]) {
    const uint32_t* const at = reinterpret_cast<const uint32_t*>(from);
    x[0] = left > 0 ? at[0] : 0;
    x[1] = left > 8 ? at[4] : 0;
  }

  // Of two steps.
  __device__ static void widen(const uint32_t (&words)[4], int, uint32_t (&weight)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) weight[i] = words[i];
  }
};

}  // namespace onnxopt
