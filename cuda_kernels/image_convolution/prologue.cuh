// What a convolution of images does to each element that it loads: nothing, or a program, such as a normalization.
#pragma once

#include "device/scalar.cuh"
#include "image_convolution/abi.h"

namespace onnxopt {

template <typename>
struct Exists {
  using type = void;
};

template <typename Op, typename = void>
struct InFront {
  enum : bool { kNothing = true };  // a static member would be in the image
  using Image = typename Op::Stored;
  __device__ static Image convolved(const ImageConvolutionParams&, int, Image x) { return x; }
};

// Op::Before has the type Image, and Of, channel() and apply(), whose result is rounded.
template <typename Op>
struct InFront<Op, typename Exists<typename Op::Before>::type> {
  enum : bool { kNothing = false };
  using Program = typename Op::Before;
  using Image = typename Program::Image;
  using Stored = typename Op::Stored;
  __device__ static Stored convolved(const ImageConvolutionParams& p, int c, Image x) {
    return Narrow<Stored>::from(Program::apply(widen(x), Program::channel(p, c)));
  }
};

// What the program needs of each channel, read once.
template <typename Before, int kChannels>
struct Elements {
  __device__ explicit Elements(const ImageConvolutionParams& p) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) of[c] = Before::Program::channel(p, c);
  }

  // What is convolved of a pixel.
  __device__ void convolve(const typename Before::Image* x, typename Before::Stored* y) const {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      y[c] = Narrow<typename Before::Stored>::from(Before::Program::apply(widen(x[c]), of[c]));
    }
  }

  typename Before::Program::Of of[kChannels];
};

}  // namespace onnxopt
