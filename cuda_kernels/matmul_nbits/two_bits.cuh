// What generated products include where weights of some have 2 bits.
#pragma once

#include "device/vector.cuh"
#include "matmul_nbits/codes.cuh"

namespace onnxopt {

// 16 codes, as codes.cuh has 8 of 4 bits. A load takes up to 16 bytes, and rows are aligned for that.
template <>
struct alignas(16) Vector<uint32_t, 8> {
  uint32_t at[8];
};

// The bits of a code are the last ones of the mantissa of 1024, or of 1024 and 4, 16 or 64 times the code.
template <>
struct Codes<float16, 2> {
  static constexpr int kPairs = 8;
  static constexpr uint32_t kOnes = 0x3c003c00u;
  __device__ static void widen(uint32_t word, uint32_t (&pairs)[kPairs]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t codes = word >> (8 * i);
      uint32_t* const four = pairs + 4 * i;
      four[0] = multiply_add_pairs<float16>(ptx::and_or(codes, 0x00030003u, 0x64006400u), 0x3c003c00u, 0xe402e402u);
      four[1] = multiply_add_pairs<float16>(ptx::and_or(codes, 0x000c000cu, 0x64006400u), 0x34003400u, 0xdc08dc08u);
      four[2] = multiply_add_pairs<float16>(ptx::and_or(codes, 0x00300030u, 0x64006400u), 0x2c002c00u, 0xd420d420u);
      four[3] = multiply_add_pairs<float16>(ptx::and_or(codes, 0x00c000c0u, 0x64006400u), 0x24002400u, 0xcc80cc80u);
    }
  }
};

template <>
struct Codes<bfloat16, 2> {
  static constexpr int kPairs = 8;
  static constexpr uint32_t kOnes = 0x3f803f80u;
  __device__ static void widen(uint32_t word, uint32_t (&pairs)[kPairs]) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const uint32_t codes = ptx::and_or(word >> (2 * i), 0x00030003u, 0x43004300u);  // 128 and the code
      pairs[i] = multiply_add_pairs<bfloat16>(codes, 0x3f803f80u, 0xc302c302u);
    }
  }
};

}  // namespace onnxopt

#include "matmul_nbits/matmul_nbits.cuh"
