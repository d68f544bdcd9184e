// One output of a depthwise convolution, for where others are computed as products.
#pragma once

#include "depthwise/abi.h"
#include "device/scalar.cuh"

namespace onnxopt {

// The sum of one output, by multiplications and additions alone.
template <typename Op, typename W>
__device__ inline float sum_of(const DepthwiseParams& p, int image, int top, int left, int channel) {
  using T = typename Op::Stored;
  using Before = typename Op::Before;
  using After = typename Op::After;
  const T* const x = static_cast<const T*>(p.input[Op::kX]);
  const T* const weight = static_cast<const T*>(p.input[Op::kWeight]) + channel;
  const typename Before::Of of = Before::channel(p, channel);
  float sum = After::channel(p, channel).start;
#pragma unroll 1
  for (int k = 0; k < W::kTaps; ++k) {
    const int h = top + k / W::kWidth * W::kDilationDown;
    const int w = left + k % W::kWidth * W::kDilationAcross;
    if (static_cast<unsigned>(h) >= static_cast<unsigned>(p.height)) continue;
    if (static_cast<unsigned>(w) >= static_cast<unsigned>(p.width)) continue;
    const int64_t pixel = (static_cast<int64_t>(image) * p.height + h) * p.width + w;
    float value = widen(x[pixel * p.channels + channel]);
    if constexpr (!Before::kNothing) value = widen(Narrow<T>::from(Before::apply(value, of)));
    sum = ::fmaf(value, widen(weight[static_cast<int64_t>(k) * p.channels]), sum);
  }
  return sum;
}

}  // namespace onnxopt
