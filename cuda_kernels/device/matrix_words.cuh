// Warp-wide moves of 8x8 matrices of 16-bit elements between registers and shared memory, and products of them.
//
// Register i of lane t holds elements (t / 4, 2 (t % 4)) and (t / 4, 2 (t % 4) + 1) of matrix i; lane 8 i + r gives the
// address of row r of matrix i, 16 bytes, in shared memory. Transposed: the elements of column r of it.
#pragma once

#include "device/dtypes.cuh"

namespace onnxopt {

template <typename T>
__device__ inline uint32_t pack(T low, T high) {
  return static_cast<uint32_t>(low.bits) | static_cast<uint32_t>(high.bits) << 16;
}

// The numbers of a pair.
template <typename T>
__device__ inline float low_of(uint32_t pair) {
  return widen(T{static_cast<uint16_t>(pair)});
}

template <typename T>
__device__ inline float high_of(uint32_t pair) {
  return widen(T{static_cast<uint16_t>(pair >> 16)});
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
constexpr bool kDeepProducts = true;  // of a depth of 16
#else
constexpr bool kDeepProducts = false;
#endif

// Whether the GPU has products of a dtype.
template <typename T>
__device__ constexpr bool has_products() {
  return kDeepProducts;
}
template <>
__device__ constexpr bool has_products<float16>() {
  return true;
}

}  // namespace onnxopt

// Where g++ compiles device code, a header of the tests has the same functions in C++.
#ifdef __CUDACC__

namespace onnxopt {

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// The word of shared memory at an address.
__device__ inline uint32_t load_word(uint32_t address) {
  uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address));
  return x;
}

__device__ inline void load_matrices(uint32_t (&x)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(row));
}

__device__ inline void load_matrices(uint32_t (&x)[2], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "r"(row));
}

__device__ inline void load_matrices_transposed(uint32_t (&x)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(row));
}

__device__ inline void load_matrices_transposed(uint32_t (&x)[2], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "r"(row));
}

__device__ inline void store_matrices_transposed(uint32_t row, const uint32_t (&x)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(x[0]),
               "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}

__device__ inline void store_matrices(uint32_t row, uint32_t x0, uint32_t x1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(row), "r"(x0), "r"(x1) : "memory");
}

__device__ inline void store_matrices(uint32_t row, uint32_t x0, uint32_t x1, uint32_t x2, uint32_t x3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(x0), "r"(x1), "r"(x2),
               "r"(x3)
               : "memory");
}

// The lane's elements of the transposed matrix of the warp's.
__device__ inline uint32_t transposed_matrix(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// y = a b + x, a of 16 rows, b of 8 columns. y may be x.
template <typename T>
struct Product;

#define ONNXOPT_PRODUCT(storage, name)                                                                                 \
  template <>                                                                                                          \
  struct Product<storage> {                                                                                            \
    __device__ static void add(float (&y)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const float (&x)[4]) { \
      if constexpr (kDeepProducts) {                                                                                   \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." name "." name                                                     \
            ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"                                 \
            : "=f"(y[0]), "=f"(y[1]), "=f"(y[2]), "=f"(y[3])                                                           \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(x[0]), "f"(x[1]), "f"(x[2]),           \
              "f"(x[3]));                                                                                              \
      } else {                                                                                                         \
        const uint32_t first[2] = {a[0], a[1]};                                                                        \
        const uint32_t second[2] = {a[2], a[3]};                                                                       \
        add(y, first, b0, x);                                                                                          \
        add(y, second, b1, y);                                                                                         \
      }                                                                                                                \
    }                                                                                                                  \
    __device__ static void add(float (&y)[4], const uint32_t (&a)[2], uint32_t b, const float (&x)[4]) {               \
      asm("mma.sync.aligned.m16n8k8.row.col.f32." name "." name                                                        \
          ".f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"                                                  \
          : "=f"(y[0]), "=f"(y[1]), "=f"(y[2]), "=f"(y[3])                                                             \
          : "r"(a[0]), "r"(a[1]), "r"(b), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]));                                 \
    }                                                                                                                  \
  };
ONNXOPT_PRODUCT(float16, "f16")
ONNXOPT_PRODUCT(bfloat16, "bf16")
#undef ONNXOPT_PRODUCT

// The sum and the four codes of int8 of a word.
__device__ inline int add_codes(uint32_t word, int sum) { return __dp4a(static_cast<int>(word), 0x01010101, sum); }

// y += a b, a of 16 rows, b of 8 columns, a depth of 32 codes: each register has four neighbours of a row of a, or of a
// column of b. b is int8, a is uint8 where it is unsigned.
template <bool kUnsigned>
struct ProductOfCodes;

#define ONNXOPT_PRODUCT_OF_CODES(is_unsigned, of_a)                                              \
  template <>                                                                                    \
  struct ProductOfCodes<is_unsigned> {                                                           \
    __device__ static void add(int (&y)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {  \
      if constexpr (kDeepProducts) {                                                             \
        asm("mma.sync.aligned.m16n8k32.row.col.s32." of_a                                        \
            ".s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"            \
            : "+r"(y[0]), "+r"(y[1]), "+r"(y[2]), "+r"(y[3])                                     \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                     \
      } else {                                                                                   \
        add(y[0], y[1], a[0], b0);                                                               \
        add(y[0], y[1], a[2], b1);                                                               \
        add(y[2], y[3], a[1], b0);                                                               \
        add(y[2], y[3], a[3], b1);                                                               \
      }                                                                                          \
    }                                                                                            \
    __device__ static void add(int& y0, int& y1, uint32_t a, uint32_t b) {                       \
      asm("mma.sync.aligned.m8n8k16.row.col.s32." of_a ".s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};" \
          : "+r"(y0), "+r"(y1)                                                                   \
          : "r"(a), "r"(b));                                                                     \
    }                                                                                            \
  };
ONNXOPT_PRODUCT_OF_CODES(false, "s8")
ONNXOPT_PRODUCT_OF_CODES(true, "u8")
#undef ONNXOPT_PRODUCT_OF_CODES

// The nearest number of TF32, which keeps 11 bits.
__device__ inline uint32_t tf32(float x) {
  uint32_t y = 0;
  if constexpr (kDeepProducts) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
}

// y += a b, a of 16 rows, b of 8 columns, a depth of 8 numbers of TF32; of others the last bits do not count.
struct ProductOfTf32 {
  __device__ static void add(float (&y)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (kDeepProducts) {
      asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(y[0]), "+f"(y[1]), "+f"(y[2]), "+f"(y[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
  }
};

template <typename T>
__device__ inline uint32_t narrow_pair(float low, float high);

template <>
__device__ inline uint32_t narrow_pair<float16>(float low, float high) {
  if constexpr (!kDeepProducts) return pack(Narrow<float16>::from(low), Narrow<float16>::from(high));
  uint32_t y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}

template <>
__device__ inline uint32_t narrow_pair<bfloat16>(float low, float high) {
  if constexpr (!kDeepProducts) return pack(Narrow<bfloat16>::from(low), Narrow<bfloat16>::from(high));
  uint32_t y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}

// x y + z of each half, to nearest even. bfloat16: from sm_80 on.
template <typename T>
__device__ inline uint32_t multiply_add_pairs(uint32_t x, uint32_t y, uint32_t z);

template <>
__device__ inline uint32_t multiply_add_pairs<float16>(uint32_t x, uint32_t y, uint32_t z) {
  uint32_t sum;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(x), "r"(y), "r"(z));
  return sum;
}

template <>
__device__ inline uint32_t multiply_add_pairs<bfloat16>(uint32_t x, uint32_t y, uint32_t z) {
  uint32_t sum;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(x), "r"(y), "r"(z));
  return sum;
}

}  // namespace onnxopt

#endif
