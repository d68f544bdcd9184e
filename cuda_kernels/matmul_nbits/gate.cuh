// Gate and up of a gated product, side by side in memory, as one result: a block for each row.
#pragma once

#include "device/early_launch.cuh"
#include "device/vector.cuh"
#include "gemm/activation.cuh"
#include "matmul_nbits/abi.h"

namespace onnxopt {

template <typename T, Activation kGate, int kThreads, int kWidth>
__device__ inline void gate_vectors(const T* g, const T* u, T* y, unsigned columns) {
#pragma unroll 2
  for (unsigned c = threadIdx.x * kWidth; c < columns; c += kThreads * kWidth) {
    const auto gate = load_vector<T, kWidth>(g + c);
    const auto up = load_vector<T, kWidth>(u + c);
    Vector<T, kWidth> result;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      result.at[j] = Narrow<T>::from(activate<kGate>(widen(gate.at[j])) * widen(up.at[j]));
    }
    store_vector(y + c, result);
  }
}

// input and output are aligned to 16 bytes.
template <typename T, Activation kGate, int kThreads>
__device__ inline void gate(const GateParams& p) {
  constexpr int kWidth = 16 / sizeof(T);
  const T* const g = static_cast<const T*>(p.input) + static_cast<uint64_t>(blockIdx.x) * 2 * p.columns;
  T* const y = static_cast<T*>(p.output) + static_cast<uint64_t>(blockIdx.x) * p.columns;
  begin_early();
  if (p.columns % kWidth == 0) {
    gate_vectors<T, kGate, kThreads, kWidth>(g, g + p.columns, y, p.columns);
  } else {
    gate_vectors<T, kGate, kThreads, 1>(g, g + p.columns, y, p.columns);
  }
}

}  // namespace onnxopt
