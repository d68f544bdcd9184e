// A product of 32 bytes of the rows of both operands: 16 elements of 16 bits, or 8 of float32.
#pragma once

#include "device/matrix_words.cuh"

namespace onnxopt {

// An operand as the matrix units take it. float32 is rounded to TF32; exact, it is two numbers of TF32.
template <typename T, bool kExact, int kWords>
struct FlashOperand {
  uint32_t at[kWords];

  __device__ static FlashOperand of(const uint32_t (&x)[kWords]) {
    FlashOperand operand;
#pragma unroll
    for (int i = 0; i < kWords; ++i) operand.at[i] = x[i];
    return operand;
  }
};

template <int kWords>
struct FlashOperand<float, false, kWords> {
  uint32_t at[kWords];

  __device__ static FlashOperand of(const uint32_t (&x)[kWords]) {
    FlashOperand operand;
#pragma unroll
    for (int i = 0; i < kWords; ++i) operand.at[i] = tf32(__uint_as_float(x[i]));
    return operand;
  }
};

template <int kWords>
struct FlashOperand<float, true, kWords> {
  uint32_t at[kWords];
  uint32_t rest[kWords];

  // Infinite numbers and NaN have no rest.
  __device__ static FlashOperand of(const uint32_t (&x)[kWords]) {
    FlashOperand operand;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      operand.at[i] = x[i] & 0xffffe000u;
      operand.rest[i] =
          operand.at[i] == x[i] ? 0 : __float_as_uint(__uint_as_float(x[i]) - __uint_as_float(operand.at[i]));
    }
    return operand;
  }
};

// y += a b, b from its word `first` on.
template <typename T, int kWords>
__device__ inline void add_product(float (&y)[4], const FlashOperand<T, false, 4>& a,
                                   const FlashOperand<T, false, kWords>& b, int first) {
  Product<T>::add(y, a.at, b.at[first], b.at[first + 1], y);
}

template <int kWords>
__device__ inline void add_product(float (&y)[4], const FlashOperand<float, false, 4>& a,
                                   const FlashOperand<float, false, kWords>& b, int first) {
  ProductOfTf32::add(y, a.at, b.at[first], b.at[first + 1]);
}

template <int kWords>
__device__ inline void add_product(float (&y)[4], const FlashOperand<float, true, 4>& a,
                                   const FlashOperand<float, true, kWords>& b, int first) {
  ProductOfTf32::add(y, a.rest, b.at[first], b.at[first + 1]);
  ProductOfTf32::add(y, a.at, b.rest[first], b.rest[first + 1]);
  ProductOfTf32::add(y, a.at, b.at[first], b.at[first + 1]);
}

// The same of the first half of a, and a word of b: 8 elements of 16 bits.
template <typename T>
__device__ inline void add_half_product(float (&y)[4], const FlashOperand<T, false, 4>& a,
                                        const FlashOperand<T, false, 4>& b, int word) {
  const uint32_t half[2] = {a.at[0], a.at[1]};
  Product<T>::add(y, half, b.at[word], y);
}

}  // namespace onnxopt
