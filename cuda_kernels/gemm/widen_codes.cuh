// 8-bit floats as float16, which holds them exactly: for products on GPUs that do not multiply the codes themselves.
#pragma once

#include "device/dtypes.cuh"
#include "device/early_launch.cuh"
#include "device/vector.cuh"
#include "gemm/widen_codes_abi.h"

namespace onnxopt {

template <int kThreads>
__device__ inline void widen_codes(const WidenCodesParams& params) {
  constexpr int kWidth = kWidenedCodes;
  let_next_begin();
  wait_for_previous();
  const uint64_t first = (static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth;
  if (first >= params.count) return;
  const float8e4m3fn* const codes = static_cast<const float8e4m3fn*>(params.codes) + first;
  float16* const numbers = static_cast<float16*>(params.numbers) + first;
  if (first + kWidth <= params.count && reinterpret_cast<uint64_t>(codes) % kWidth == 0) {
    const auto x = load_vector<float8e4m3fn, kWidth>(codes);
    Vector<float16, kWidth> y;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) y.at[j] = Narrow<float16>::from(widen(x.at[j]));
    store_vector(numbers, y);
    return;
  }
  for (int j = 0; j < kWidth && first + j < params.count; ++j) numbers[j] = Narrow<float16>::from(widen(codes[j]));
}

}  // namespace onnxopt
