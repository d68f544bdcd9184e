// The kernel size, strides and dilations of a convolution or a pool, known when compiling. Images have one plane.
#pragma once

namespace onnxopt {

template <int kHeight_, int kWidth_, int kStrideDown_, int kStrideAcross_, int kDilationDown_, int kDilationAcross_>
struct StaticWindow {
  static constexpr int kHeight = kHeight_;
  static constexpr int kWidth = kWidth_;
  static constexpr int kStrideDown = kStrideDown_;
  static constexpr int kStrideAcross = kStrideAcross_;
  static constexpr int kDilationDown = kDilationDown_;
  static constexpr int kDilationAcross = kDilationAcross_;
  static constexpr int kTaps = kHeight * kWidth;
  static constexpr bool kIsVolume = false;
  static constexpr int kPlanes = 1;
  static constexpr bool kDense = kDilationDown == 1 && kDilationAcross == 1;

  // Inputs from the first to the last that `outputs` neighbouring outputs see through `taps` taps.
  static constexpr int rows(int outputs) { return (outputs - 1) * kStrideDown + (kHeight - 1) * kDilationDown + 1; }
  static constexpr int columns(int outputs, int taps = kWidth) {
    return (outputs - 1) * kStrideAcross + (taps - 1) * kDilationAcross + 1;
  }

  // Whether one of these outputs sees row or column number `at` of those.
  static constexpr bool sees_row(int at, int outputs) { return sees(at, outputs, kHeight, kStrideDown, kDilationDown); }
  static constexpr bool sees_column(int at, int outputs, int taps) {
    return sees(at, outputs, taps, kStrideAcross, kDilationAcross);
  }

 private:
  static constexpr bool sees(int at, int outputs, int taps, int stride, int dilation) {
    for (int i = 0; i < outputs; ++i) {
      const int tap = at - i * stride;
      if (tap >= 0 && tap % dilation == 0 && tap / dilation < taps) return true;
    }
    return false;
  }
};

// A window over planes of that window.
template <typename Plane, int kPlanes_, int kStrideThrough_, int kDilationThrough_>
struct StaticVolume : Plane {
  static constexpr bool kIsVolume = true;
  static constexpr int kPlanes = kPlanes_;
  static constexpr int kStrideThrough = kStrideThrough_;
  static constexpr int kDilationThrough = kDilationThrough_;
};

}  // namespace onnxopt
