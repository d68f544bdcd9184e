// What the host hands to a convolution of codes: x [batch, height, width, channels], w [columns, R, S, channels] and
// y [batch, of_image, columns], all contiguous. Shared by the kernels (NVRTC) and the custom-op library (g++).
#pragma once

#include "device/abi.h"

namespace onnxopt {

// The numbers of the steps from a sum to a code. zero: the zero point of x. scale: of sums, with scales a factor of
// these. rounded, residual, result: scales of the codes that v is rounded to in between, of the residual and of y;
// per_rounded and per_result one by them. rounded_low, result_low: the lowest codes minus the zero points, the highest
// are 255 above. bound: of a clip.
struct CodedNumbers {
  float zero;
  float scale;
  float per_rounded;
  float rounded;
  float rounded_low;
  float residual;
  float residual_zero;
  float bound;
  float per_result;
  float result_low;
  float result_zero;
};

// rows: of y as a matrix, its pixels. depth: codes of a filter. scales, bias: one a column, or null where the kernel
// reads none; residual, of y's shape, likewise. channels and columns are multiples of 16, and x, w, residual and y of
// 16 bytes. across: tiles of y that are side by side. of_image, of_row: pixels of y. of_tap: channels.
struct CodedConvolutionParams {
  const void* x;
  const void* w;
  const void* scales;
  const void* bias;
  const void* residual;
  void* y;
  unsigned int rows;
  unsigned int columns;
  unsigned int depth;
  unsigned int tiles;
  unsigned int across;
  int height;
  int width;
  int pad_top;
  int pad_left;
  Divisor<unsigned int> of_image;
  Divisor<unsigned int> of_row;
  Divisor<unsigned int> of_tap;
  CodedNumbers numbers;
};

}  // namespace onnxopt
