// What a pool makes of the values of a window, for kWidth channels at once.
#pragma once

#include "device/packed.cuh"
#include "device/vector.cuh"

namespace onnxopt {

// kLeast: a value that no max is below. kLowest: the least finite one.
template <typename T>
struct Limits;
// clang-format off
template <> struct Limits<float16> { static constexpr uint16_t kLeast = 0xfc00u, kLowest = 0xfbffu; };
template <> struct Limits<bfloat16> { static constexpr uint16_t kLeast = 0xff80u, kLowest = 0xff7fu; };
template <> struct Limits<float> { static constexpr uint32_t kLeast = 0xff800000u, kLowest = 0xff7fffffu; };
template <> struct Limits<int8_t> { static constexpr int8_t kLeast = -128, kLowest = -128; };
template <> struct Limits<uint8_t> { static constexpr uint8_t kLeast = 0, kLowest = 0; };
// clang-format on

template <typename T, typename Bits>
__device__ inline T from_bits(Bits bits) {
  if constexpr (sizeof(T) == 4) {
    return __uint_as_float(bits);
  } else {
    return T{bits};
  }
}

// Not a number where one of the two is none.
template <typename T>
__device__ inline T greater_of(T x, T y) {
  return Narrow<T>::from(max(widen(x), widen(y)));
}

// Of all the elements in a word.
template <typename T>
__device__ inline uint32_t greater_in_words(uint32_t x, uint32_t y) {
  if constexpr (sizeof(T) == 1) {
    return max(Packed<T>{x}, Packed<T>{y}).bits;
  } else {
    const T low = greater_of(T{static_cast<uint16_t>(x)}, T{static_cast<uint16_t>(y)});
    const T high = greater_of(T{static_cast<uint16_t>(x >> 16)}, T{static_cast<uint16_t>(y >> 16)});
    return low.bits | static_cast<uint32_t>(high.bits) << 16;
  }
}

#if __CUDA_ARCH__ >= 800
template <>
__device__ inline uint32_t greater_in_words<float16>(uint32_t x, uint32_t y) {
  uint32_t z;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  return z;
}

template <>
__device__ inline uint32_t greater_in_words<bfloat16>(uint32_t x, uint32_t y) {
  uint32_t z;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  return z;
}
#endif

// Zeros unless `kept`. Bit by bit, so that the loads of a vector do not become branches.
template <typename T, int kWidth>
__device__ inline void clear_unless(bool kept, Vector<T, kWidth>& x) {
  const uint32_t mask = kept ? 0xffffffffu : 0u;
  if constexpr (sizeof(T) * kWidth % 4 == 0) {
#pragma unroll
    for (int w = 0; w < static_cast<int>(sizeof(T)) * kWidth / 4; ++w) word(x, w) &= mask;
  } else {
    x.at[0].bits &= static_cast<uint16_t>(mask);
  }
}

template <typename T, int kWidth_>
struct Greatest {
  using Storage = T;
  static constexpr int kWidth = kWidth_;
  static constexpr bool kTakesZeros = false;

  Vector<T, kWidth> best = splat<T, kWidth>(from_bits<T>(Limits<T>::kLeast));

  __device__ void take(const Vector<T, kWidth>& x) {
    constexpr int kBytes = sizeof(T) * kWidth;
    if constexpr (sizeof(T) < 4 && kBytes % 4 == 0) {
#pragma unroll
      for (int w = 0; w < kBytes / 4; ++w) word(best, w) = greater_in_words<T>(word(best, w), word(x, w));
    } else {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) best.at[j] = greater_of(best.at[j], x.at[j]);
    }
  }

  __device__ void merge(const Greatest& other) { take(other.best); }

  // inside: how many of the window's places lie inside of the tensor.
  __device__ Vector<T, kWidth> value(int inside, int /*taps*/) const {
    return inside > 0 ? best : splat<T, kWidth>(from_bits<T>(Limits<T>::kLowest));
  }
};

// kCountsPadding: the padding counts as zeros.
template <typename T, int kWidth_, bool kCountsPadding>
struct Mean {
  using Storage = T;
  static constexpr int kWidth = kWidth_;
  static constexpr bool kTakesZeros = true;

  float sum[kWidth] = {};

  __device__ void take(const Vector<T, kWidth>& x) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sum[j] += widen(x.at[j]);
  }

  __device__ void merge(const Mean& other) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sum[j] += other.sum[j];
  }

  __device__ Vector<T, kWidth> value(int inside, int taps) const {
    const float count = static_cast<float>(kCountsPadding || inside == 0 ? taps : inside);
    const float inverse = 1.0f / count;
    Vector<T, kWidth> mean;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      // One rounding of float32 more does not show in 16 bits, and saves a branch an element.
      mean.at[j] = Narrow<T>::from(sizeof(T) == 2 ? sum[j] * inverse : divide_by_sum(sum[j], count));
    }
    return mean;
  }
};

}  // namespace onnxopt
