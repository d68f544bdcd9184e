// float32 powers: computed in float64, so that the error of the logarithm does not grow with the exponent.
#pragma once

#include "cpu/evaluate/loops.h"

namespace onnxopt::ONNXOPT_TARGET {

// C's pow on float64 batches holding float32 values, special cases included (C17 F.10.4.4).
template <typename Batch>
inline Batch PowBatch(const Batch& x, const Batch& y) {
  const Batch one(1.0);
  const Batch infinity(__builtin_inf());
  const Batch magnitude = xsimd::abs(x);
  Batch power = xsimd::exp(y * xsimd::log(magnitude));
  power = xsimd::select(y == Batch(0.0) || magnitude == one, one, power);
  power = xsimd::select(xsimd::isnan(x) && y != Batch(0.0), x, power);
  power = xsimd::select(xsimd::isnan(y) && x != one, y, power);
  const Batch half = y * Batch(0.5);
  const auto integer = xsimd::trunc(y) == y;
  const auto odd = integer && xsimd::trunc(half) != half;
  power = xsimd::select(x < Batch(0.0) && !integer && magnitude != infinity && y == y, Batch(__builtin_nan("")), power);
  return xsimd::select(odd, xsimd::copysign(power, x), power);
}

template <Splats kSplats>
void PowFloat32(float* __restrict r, const float* x, const float* y, size_t n) {
  using Batch = xsimd::batch<double>;
  constexpr size_t kChunk = 64;
  alignas(64) double base[kChunk] = {};
  alignas(64) double exponent[kChunk] = {};
  for (size_t i = 0; i < n; i += kChunk) {
    const size_t m = n - i < kChunk ? n - i : kChunk;
    for (size_t j = 0; j < m; ++j) base[j] = (kSplats & 1U) != 0 ? x[0] : x[i + j];
    for (size_t j = 0; j < m; ++j) exponent[j] = (kSplats & 2U) != 0 ? y[0] : y[i + j];
    for (size_t j = 0; j < m; j += Batch::size) {
      PowBatch(Batch::load_aligned(base + j), Batch::load_aligned(exponent + j)).store_aligned(base + j);
    }
    for (size_t j = 0; j < m; ++j) r[i + j] = static_cast<float>(base[j]);
  }
}

// One exponent for the block: the common ones are a multiplication or two, or a root.
inline void PowUniform(float* __restrict r, const float* __restrict x, const float* y, size_t n) {
  if (y[0] == 2.0F) {
    for (size_t i = 0; i < n; ++i) r[i] = x[i] * x[i];
  } else if (y[0] == 3.0F) {
    for (size_t i = 0; i < n; ++i) r[i] = x[i] * x[i] * x[i];
  } else if (y[0] == 1.0F) {
    memcpy(r, x, n * sizeof(float));
  } else if (y[0] == -1.0F) {
    for (size_t i = 0; i < n; ++i) r[i] = 1.0F / x[i];
  } else if (y[0] == 0.5F) {
    // pow takes -0 to 0 and minus infinity to infinity, the root does not.
    for (size_t i = 0; i < n; ++i) {
      r[i] = x[i] == -__builtin_inff() ? __builtin_inff() : __builtin_sqrtf(x[i] + 0.0F);
    }
  } else {
    PowFloat32<2>(r, x, y, n);
  }
}

template <Splats kSplats>
void Pow32(void* out, const void* a, const void* b, const void*, size_t n) {
  auto* r = static_cast<float*>(out);
  const auto* x = static_cast<const float*>(a);
  const auto* y = static_cast<const float*>(b);
  if constexpr (kSplats == 2) {
    PowUniform(r, x, y, n);
  } else {
    PowFloat32<kSplats>(r, x, y, n);
  }
}

inline StepFunction PowStep(Splats splats) {
  switch (splats) {
    case 0:
      return Pow32<0>;
    case 1:
      return Pow32<1>;
    case 2:
      return Pow32<2>;
    default:
      return nullptr;
  }
}

}  // namespace onnxopt::ONNXOPT_TARGET
