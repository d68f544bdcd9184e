// What device/matrix_words.cuh has in PTX, and the barriers of depthwise kernels.
#pragma once

#include <cstring>

#include "cuda.h"
#include "device/matrix_words.cuh"

namespace emulation {

// Calls f(of), where of(lane) is what that lane of this thread's warp gave.
template <typename T, typename F>
void together(const T& mine, F&& f) {
  Barrier& warp = block.warps[threadIdx.x / kWarp];
  block.words[threadIdx.x] = reinterpret_cast<unsigned long long>(&mine);
  arrive_and_wait(warp);
  f([&](unsigned lane) -> const T& {
    return *reinterpret_cast<const T*>(block.words[threadIdx.x / kWarp * kWarp + lane]);
  });
  arrive_and_wait(warp);
}

}  // namespace emulation

inline void __syncwarp() { emulation::arrive_and_wait(emulation::block.warps[threadIdx.x / emulation::kWarp]); }

inline int __syncthreads_or(int any) {
  static int all = 0;
  if (any != 0) all = 1;
  __syncthreads();
  const int found = all;
  __syncthreads();
  all = 0;
  __syncthreads();
  return found;
}

namespace onnxopt {

inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(pointer) - dynamic_shared());
}

inline uint32_t load_word(uint32_t address) {
  uint32_t x;
  std::memcpy(&x, dynamic_shared() + address, sizeof(x));
  return x;
}

// Element (row, column) of matrix i, whose rows begin at the addresses that lanes 8 i + row give.
template <typename Of>
unsigned short* matrix_element(const Of& of, int i, int row, int column) {
  return reinterpret_cast<unsigned short*>(dynamic_shared() + of(8 * i + row)) + column;
}

template <int kCount>
void move_matrices(uint32_t (&x)[kCount], uint32_t row, bool stores, bool transposed) {
  const int lane = threadIdx.x % 32;
  emulation::together(row, [&](const auto& of) {
    for (int i = 0; i < kCount; ++i) {
      for (int half = 0; half < 2; ++half) {
        const int r = transposed ? lane % 4 * 2 + half : lane / 4;
        const int c = transposed ? lane / 4 : lane % 4 * 2 + half;
        unsigned short* const place = matrix_element(of, i, r, c);
        if (stores) *place = static_cast<unsigned short>(x[i] >> (16 * half));
        if (!stores) x[i] = (x[i] & ~(0xffffu << (16 * half))) | static_cast<uint32_t>(*place) << (16 * half);
      }
    }
  });
}

inline void load_matrices(uint32_t (&x)[4], uint32_t row) { move_matrices(x, row, false, false); }
inline void load_matrices(uint32_t (&x)[2], uint32_t row) { move_matrices(x, row, false, false); }
inline void load_matrices_transposed(uint32_t (&x)[4], uint32_t row) { move_matrices(x, row, false, true); }
inline void load_matrices_transposed(uint32_t (&x)[2], uint32_t row) { move_matrices(x, row, false, true); }
inline void store_matrices_transposed(uint32_t row, const uint32_t (&x)[4]) {
  uint32_t words[4] = {x[0], x[1], x[2], x[3]};
  move_matrices(words, row, true, true);
}
inline void store_matrices(uint32_t row, uint32_t x0, uint32_t x1) {
  uint32_t words[2] = {x0, x1};
  move_matrices(words, row, true, false);
}
inline void store_matrices(uint32_t row, uint32_t x0, uint32_t x1, uint32_t x2, uint32_t x3) {
  uint32_t words[4] = {x0, x1, x2, x3};
  move_matrices(words, row, true, false);
}

inline uint32_t transposed_matrix(uint32_t x) {
  const int lane = threadIdx.x % 32;
  uint32_t y = 0;
  emulation::together(x, [&](const auto& of) {
    for (int half = 0; half < 2; ++half) {
      y |= (of((lane % 4 * 2 + half) * 4 + lane / 8) >> (lane / 4 % 2 * 16) & 0xffffu) << (16 * half);
    }
  });
  return y;
}

// y = a b + x, a of 16 rows, b of 8 columns.
template <typename T>
struct Product {
  struct Words {
    uint32_t a[4];
    uint32_t b[2];
  };

  static void add(float (&y)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const float (&x)[4]) {
    multiply(y, {{a[0], a[1], a[2], a[3]}, {b0, b1}}, 16, x);
  }
  static void add(float (&y)[4], const uint32_t (&a)[2], uint32_t b, const float (&x)[4]) {
    multiply(y, {{a[0], a[1], 0, 0}, {b, 0}}, 8, x);
  }

  static float half_of(uint32_t word, int half) { return widen(T{static_cast<uint16_t>(word >> (16 * half))}); }

  static void multiply(float (&y)[4], const Words& mine, int depth, const float (&x)[4]) {
    const int lane = threadIdx.x % 32;
    emulation::together(mine, [&](const auto& of) {
      float sums[4];
      for (int i = 0; i < 4; ++i) {
        const int column = lane % 4 * 2 + i % 2;
        sums[i] = x[i];
        for (int k = 0; k < depth; ++k) {
          const float left = half_of(of(lane / 4 * 4 + k % 8 / 2).a[k / 8 * 2 + i / 2], k % 2);
          const float right = half_of(of(column * 4 + k % 8 / 2).b[k / 8], k % 2);
          sums[i] += left * right;
        }
      }
      std::memcpy(y, sums, sizeof(sums));
    });
  }
};

inline int add_codes(uint32_t word, int sum) {
  for (int k = 0; k < 4; ++k) sum += static_cast<signed char>(word >> (8 * k));
  return sum;
}

// y += a b, a of 16 rows, b of 8 columns, a depth of 32 codes.
template <bool kUnsigned>
struct ProductOfCodes {
  struct Words {
    uint32_t a[4];
    uint32_t b[2];
  };

  static int code_of(uint32_t word, int k) { return static_cast<signed char>(word >> (8 * (k % 4))); }

  static void add(int (&y)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    const int lane = threadIdx.x % 32;
    emulation::together(Words{{a[0], a[1], a[2], a[3]}, {b0, b1}}, [&](const auto& of) {
      for (int i = 0; i < 4; ++i) {
        for (int k = 0; k < 32; ++k) {
          const int code = code_of(of(lane / 4 * 4 + k % 16 / 4).a[k / 16 * 2 + i / 2], k);
          const int left = kUnsigned ? code & 0xff : code;
          y[i] += left * code_of(of((lane % 4 * 2 + i % 2) * 4 + k % 16 / 4).b[k / 16], k);
        }
      }
    });
  }
};

inline uint32_t tf32(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & ~0x1fffu;
}

struct ProductOfTf32 {
  struct Words {
    uint32_t a[4];
    uint32_t b[2];
  };

  static float number(uint32_t word) {
    float x;
    word &= ~0x1fffu;
    std::memcpy(&x, &word, sizeof(x));
    return x;
  }

  static void add(float (&y)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    const int lane = threadIdx.x % 32;
    emulation::together(Words{{a[0], a[1], a[2], a[3]}, {b0, b1}}, [&](const auto& of) {
      for (int i = 0; i < 4; ++i) {
        for (int k = 0; k < 8; ++k) {
          const float left = number(of(lane / 4 * 4 + k % 4).a[k / 4 * 2 + i / 2]);
          y[i] += left * number(of((lane % 4 * 2 + i % 2) * 4 + k % 4).b[k / 4]);
        }
      }
    });
  }
};

template <typename T>
uint32_t narrow_pair(float low, float high) {
  return pack(Narrow<T>::from(low), Narrow<T>::from(high));
}

// x y + z of each half.
template <typename T>
uint32_t multiply_add_pairs(uint32_t x, uint32_t y, uint32_t z) {
  const auto half = [](uint32_t word, int i) { return widen(T{static_cast<uint16_t>(word >> (16 * i))}); };
  const auto sum = [&](int i) { return std::fma(half(x, i), half(y, i), half(z, i)); };
  return narrow_pair<T>(sum(0), sum(1));
}

}  // namespace onnxopt
