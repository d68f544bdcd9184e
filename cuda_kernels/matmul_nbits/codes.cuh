// Weights of 4 and 8 bits as 16-bit floats: pairs of codes less the middle of their range, exact.
#pragma once

#include "device/dtypes.cuh"
#include "device/matrix_words.cuh"

namespace onnxopt {

// How a word of 8 codes of 4 bits, or 4 of 8, becomes pairs of T; middle: what stands for zero where nothing else does.
template <typename T, int kBits>
struct Codes;

// The bits of a code are the last ones of the mantissa of 1024, or of 1024 and 16 times the code.
template <>
struct Codes<float16, 4> {
  static constexpr int kPairs = 4;
  static constexpr uint32_t kOnes = 0x3c003c00u;
  __device__ static void widen(uint32_t word, uint32_t (&pairs)[kPairs]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t codes = word >> (8 * i);
      pairs[2 * i] =
          multiply_add_pairs<float16>(ptx::and_or(codes, 0x000f000fu, 0x64006400u), 0x3c003c00u, 0xe408e408u);
      pairs[2 * i + 1] =
          multiply_add_pairs<float16>(ptx::and_or(codes, 0x00f000f0u, 0x64006400u), 0x2c002c00u, 0xd480d480u);
    }
  }
};

template <>
struct Codes<bfloat16, 4> {
  static constexpr int kPairs = 4;
  static constexpr uint32_t kOnes = 0x3f803f80u;
  __device__ static void widen(uint32_t word, uint32_t (&pairs)[kPairs]) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const uint32_t codes = ptx::and_or(word >> (4 * i), 0x000f000fu, 0x43004300u);  // 128 and the code
      pairs[i] = multiply_add_pairs<bfloat16>(codes, 0x3f803f80u, 0xc308c308u);
    }
  }
};

template <>
struct Codes<float16, 8> {
  static constexpr int kPairs = 2;
  static constexpr uint32_t kOnes = 0x3c003c00u;
  __device__ static void widen(uint32_t word, uint32_t (&pairs)[kPairs]) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const uint32_t codes = __byte_perm(word, 0x64646464u, i == 0 ? 0x4140 : 0x4342);  // 1024 and the code
      pairs[i] = multiply_add_pairs<float16>(codes, 0x3c003c00u, 0xe480e480u);
    }
  }
};

// bfloat16 has no bits for 128 and a code of 8 bits: its halves are added, each exact.
template <>
struct Codes<bfloat16, 8> {
  static constexpr int kPairs = 2;
  static constexpr uint32_t kOnes = 0x3f803f80u;
  __device__ static void widen(uint32_t word, uint32_t (&pairs)[kPairs]) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const uint32_t codes = __byte_perm(word, 0, i == 0 ? 0x4140 : 0x4342);
      const uint32_t low = ptx::and_or(codes, 0x000f000fu, 0x43004300u);                   // 128 and the lower half
      const uint32_t high = ptx::and_or(codes >> 4, 0x000f000fu, 0x43004300u);             // 128 and the upper half
      const uint32_t rest = multiply_add_pairs<bfloat16>(high, 0x41804180u, 0xc510c510u);  // 16 of it less 256
      pairs[i] = multiply_add_pairs<bfloat16>(low, 0x3f803f80u, rest);
    }
  }
};

// The elements of a row of a that a lane multiplies with the codes of a word, in the order of their pairs.
template <typename T, int kBits>
__device__ inline void pair_up(const uint32_t (&words)[16 / kBits], uint32_t (&pairs)[16 / kBits]) {
  if constexpr (kBits == 8) {
    pairs[0] = words[0];
    pairs[1] = words[1];
  } else {
    constexpr int kHalf = 8 / kBits;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {  // a code and the one half a word behind it
      pairs[2 * i] = __byte_perm(words[i], words[kHalf + i], 0x5410);
      pairs[2 * i + 1] = __byte_perm(words[i], words[kHalf + i], 0x7632);
    }
  }
}

}  // namespace onnxopt
