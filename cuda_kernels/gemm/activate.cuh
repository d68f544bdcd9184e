// The activation behind a product of cuBLASLt's, in place.
#pragma once

#include "device/dtypes.cuh"
#include "device/early_launch.cuh"
#include "device/vector.cuh"
#include "gemm/activation.cuh"
#include "gemm/large_products_abi.h"

namespace onnxopt {

template <typename T, Activation kActivation, int kThreads>
__device__ inline void activate_in_place(const ActivateParams& params) {
  constexpr int kWidth = kActivatedBytes / sizeof(T);
  constexpr bool kExact = sizeof(T) == 4;
  const uint64_t first = (uint64_t{blockIdx.x} * kThreads + threadIdx.x) * kWidth;
  begin_early();
  if (first >= params.count) return;
  T* const y = static_cast<T*>(params.output) + first;
  const bool whole = first + kWidth <= params.count && reinterpret_cast<uint64_t>(y) % kActivatedBytes == 0;
  if (!whole) {
    const uint64_t left = params.count - first;
    for (int j = 0; j < kWidth && j < left; ++j) y[j] = Narrow<T>::from(activate<kActivation, kExact>(widen(y[j])));
    return;
  }
  Vector<T, kWidth> x = load_vector<T, kWidth>(y);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) x.at[j] = Narrow<T>::from(activate<kActivation, kExact>(widen(x.at[j])));
  store_at_once(y, x);
}

}  // namespace onnxopt
