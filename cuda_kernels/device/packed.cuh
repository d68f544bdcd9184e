// 8-bit integers, four in a word, and the primitives that work on all of them at once, under the names of scalar.cuh.
#pragma once

#include "device/scalar.cuh"

namespace onnxopt {

// T: int8_t or uint8_t.
template <typename T>
struct Packed {
  static constexpr int kCount = 4;
  uint32_t bits;
};

template <typename T>
__device__ inline Packed<T> add(Packed<T> x, Packed<T> y) {
  return {__vadd4(x.bits, y.bits)};
}

template <typename T>
__device__ inline Packed<T> sub(Packed<T> x, Packed<T> y) {
  return {__vsub4(x.bits, y.bits)};
}

template <typename T>
__device__ inline Packed<T> neg(Packed<T> x) {
  return {__vsub4(0u, x.bits)};
}

__device__ inline Packed<int8_t> min(Packed<int8_t> x, Packed<int8_t> y) { return {__vmins4(x.bits, y.bits)}; }
__device__ inline Packed<int8_t> max(Packed<int8_t> x, Packed<int8_t> y) { return {__vmaxs4(x.bits, y.bits)}; }
__device__ inline Packed<int8_t> abs(Packed<int8_t> x) { return {__vabs4(x.bits)}; }
__device__ inline Packed<uint8_t> min(Packed<uint8_t> x, Packed<uint8_t> y) { return {__vminu4(x.bits, y.bits)}; }
__device__ inline Packed<uint8_t> max(Packed<uint8_t> x, Packed<uint8_t> y) { return {__vmaxu4(x.bits, y.bits)}; }
__device__ inline Packed<uint8_t> abs(Packed<uint8_t> x) { return x; }

template <typename T>
__device__ inline Packed<T> bit_not(Packed<T> x) {
  return {~x.bits};
}

template <typename T>
__device__ inline Packed<T> bit_and(Packed<T> x, Packed<T> y) {
  return {x.bits & y.bits};
}

template <typename T>
__device__ inline Packed<T> bit_or(Packed<T> x, Packed<T> y) {
  return {x.bits | y.bits};
}

template <typename T>
__device__ inline Packed<T> bit_xor(Packed<T> x, Packed<T> y) {
  return {x.bits ^ y.bits};
}

}  // namespace onnxopt
