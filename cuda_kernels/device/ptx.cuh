// PTX instructions that compute, as functions. Where g++ compiles device code, onnxopt/verification/emulation/cuda.h
// has functions of the same names that compute the same in C++.
#pragma once

#ifdef __CUDACC__

namespace onnxopt {
namespace ptx {

__device__ inline float half_to_float(unsigned short x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}

// To nearest even.
__device__ inline unsigned short float_to_half(float x) {
  unsigned short y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}

__device__ inline float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline float div(float x, float y) {
  float z;
  asm("div.full.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Subnormal arguments and results count as 0.
__device__ inline float reciprocal_of_normal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline float sqrt(float x) {
  float y;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The bits of x in the mask, and those of y.
__device__ inline unsigned int and_or(unsigned int x, unsigned int mask, unsigned int y) {
  unsigned int z;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(z) : "r"(x), "r"(mask), "r"(y));
  return z;
}

}  // namespace ptx
}  // namespace onnxopt

#endif
