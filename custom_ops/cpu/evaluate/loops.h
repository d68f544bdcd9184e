// Loops that run a primitive over a block.
#pragma once

#include <string.h>

#include <xsimd/xsimd.hpp>

#include "cpu/evaluate/evaluator.h"
#include "cpu/evaluate/scalar.h"

namespace onnxopt::ONNXOPT_TARGET {

template <typename F, typename R, typename A>
void Unary(void* out, const void* a, const void*, const void*, size_t n) {
  R* __restrict r = static_cast<R*>(out);
  const A* __restrict x = static_cast<const A*>(a);
  for (size_t i = 0; i < n; ++i) r[i] = F::Apply(x[i]);
}

template <typename F, typename R, typename T, Splats kSplats>
void Binary(void* out, const void* a, const void* b, const void*, size_t n) {
  R* __restrict r = static_cast<R*>(out);
  const T* __restrict x = static_cast<const T*>(a);
  const T* __restrict y = static_cast<const T*>(b);
  const T x0 = x[0];
  const T y0 = y[0];
  for (size_t i = 0; i < n; ++i) r[i] = F::Apply((kSplats & 1U) != 0 ? x0 : x[i], (kSplats & 2U) != 0 ? y0 : y[i]);
}

template <typename T, Splats kSplats>
void Select(void* out, const void* condition, const void* a, const void* b, size_t n) {
  T* __restrict r = static_cast<T*>(out);
  const uint8_t* __restrict c = static_cast<const uint8_t*>(condition);
  const T* __restrict x = static_cast<const T*>(a);
  const T* __restrict y = static_cast<const T*>(b);
  const T x0 = x[0];
  const T y0 = y[0];
  for (size_t i = 0; i < n; ++i) {
    const T if_true = (kSplats & 2U) != 0 ? x0 : x[i];
    const T if_false = (kSplats & 4U) != 0 ? y0 : y[i];
    r[i] = c[i] != 0 ? if_true : if_false;
  }
}

template <typename T>
void Fill(void* out, const void* a, const void*, const void*, size_t n) {
  T* __restrict r = static_cast<T*>(out);
  const T x = *static_cast<const T*>(a);
  for (size_t i = 0; i < n; ++i) r[i] = x;
}

template <typename T>
void FindZero(void* out, const void* a, const void*, const void*, size_t n) {
  const T* __restrict x = static_cast<const T*>(a);
  uint8_t has_zero = 0;
  for (size_t i = 0; i < n; ++i) has_zero |= static_cast<uint8_t>(x[i] == T(0));
  if (has_zero != 0) *static_cast<uint8_t*>(out) = 1;
}

// F::Apply on SIMD batches. The tail goes through a whole batch too, so that a value does not depend on its place.
template <typename F>
void UnaryBatch(void* out, const void* a, const void*, const void*, size_t n) {
  using Batch = xsimd::batch<float>;
  constexpr size_t kWidth = Batch::size;
  float* __restrict r = static_cast<float*>(out);
  const float* __restrict x = static_cast<const float*>(a);
  size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) F::Apply(Batch::load_unaligned(x + i)).store_unaligned(r + i);
  if (i == n) return;
  float tail[kWidth] = {};
  memcpy(tail, x + i, (n - i) * sizeof(float));
  F::Apply(Batch::load_unaligned(tail)).store_unaligned(tail);
  memcpy(r + i, tail, (n - i) * sizeof(float));
}

}  // namespace onnxopt::ONNXOPT_TARGET
