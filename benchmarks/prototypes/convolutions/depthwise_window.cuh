// A convolution's kernel size, stride and dilation, known when compiling.
#pragma once

namespace onnxopt {

template <int kHeight_, int kWidth_, int kStrideDown_ = 1, int kStrideAcross_ = kStrideDown_, int kDilationDown_ = 1,
          int kDilationAcross_ = kDilationDown_>
struct Window {
  static constexpr int kHeight = kHeight_;
  static constexpr int kWidth = kWidth_;
  static constexpr int kStrideDown = kStrideDown_;
  static constexpr int kStrideAcross = kStrideAcross_;
  static constexpr int kDilationDown = kDilationDown_;
  static constexpr int kDilationAcross = kDilationAcross_;
  static constexpr int kTaps = kHeight * kWidth;
  // inputs that `outputs` neighbouring outputs see
  static constexpr int rows(int outputs) { return (outputs - 1) * kStrideDown + (kHeight - 1) * kDilationDown + 1; }
  static constexpr int columns(int outputs) {
    return (outputs - 1) * kStrideAcross + (kWidth - 1) * kDilationAcross + 1;
  }
};

}  // namespace onnxopt
