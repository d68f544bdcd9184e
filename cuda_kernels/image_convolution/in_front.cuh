// What a convolution of images does to each element that it loads: nothing, or a program, such as a normalization.
#pragma once

#include "device/scalar.cuh"
#include "image_convolution/abi.h"

namespace onnxopt {

template <typename>
struct Exists {
  using type = void;
};

// What makes elements of the convolution of elements of x: nothing.
template <typename Op, typename = void>
struct InFront {
  static constexpr bool kNothing = true;
  using Image = typename Op::Stored;
  struct Of {};
  __device__ static Of channel(const ImageConvolutionParams&, int) { return {}; }
  __device__ static Image convolved(Image x, const Of&) { return x; }
};

// A program, whose result is rounded.
template <typename Op>
struct InFront<Op, typename Exists<typename Op::Before>::type> {
  static constexpr bool kNothing = false;
  using Image = typename Op::Before::Image;
  using Of = typename Op::Before::Of;
  __device__ static Of channel(const ImageConvolutionParams& p, int c) { return Op::Before::channel(p, c); }
  __device__ static typename Op::Stored convolved(Image x, const Of& of) {
    return Narrow<typename Op::Stored>::from(Op::Before::apply(widen(x), of));
  }
};

}  // namespace onnxopt
