// Loads that are not made where there is nothing to read, and give zeros there.
#pragma once

#include "device/dtypes.cuh"
#include "device/vector.cuh"

namespace onnxopt {

#ifdef __CUDACC__
// One instruction for the compiler, which would otherwise load to other registers than those that are to hold the
// zeros, and wait for each load to move it.
template <typename T, int kWidth>
__device__ inline Vector<T, kWidth> load_or_zero(const void* data, bool inside) {
  constexpr int kBytes = sizeof(T) * kWidth;
  static_assert(kBytes == 1 || kBytes == 2 || kBytes == 4 || kBytes == 8 || kBytes == 16, "what one instruction loads");
  Vector<T, kWidth> x;
  const uint32_t holds = inside;
  if constexpr (kBytes == 16) {
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, %5, 0;"
        "mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;"
        "@p ld.global.v4.b32 {%0, %1, %2, %3}, [%4]; }"
        : "=&r"(word(x, 0)), "=&r"(word(x, 1)), "=&r"(word(x, 2)), "=&r"(word(x, 3))
        : "l"(data), "r"(holds));
  } else if constexpr (kBytes == 8) {
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, %3, 0; mov.b32 %0, 0; mov.b32 %1, 0; @p ld.global.v2.b32 {%0, %1}, [%2]; }"
        : "=&r"(word(x, 0)), "=&r"(word(x, 1))
        : "l"(data), "r"(holds));
  } else if constexpr (kBytes == 4) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; mov.b32 %0, 0; @p ld.global.b32 %0, [%1]; }"
                 : "=&r"(word(x, 0))
                 : "l"(data), "r"(holds));
  } else if constexpr (kBytes == 1) {
    uint32_t bits;
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; mov.b32 %0, 0; @p ld.global.u8 %0, [%1]; }"
                 : "=&r"(bits)
                 : "l"(data), "r"(holds));
    x.at[0] = static_cast<T>(bits);
  } else {
    uint16_t bits;
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; mov.b16 %0, 0; @p ld.global.b16 %0, [%1]; }"
                 : "=&h"(bits)
                 : "l"(data), "r"(holds));
    x.at[0] = T{bits};
  }
  return x;
}
#else
template <typename T, int kWidth>
__device__ inline Vector<T, kWidth> load_or_zero(const void* data, bool inside) {
  return inside ? load_vector<T, kWidth>(static_cast<const T*>(data)) : Vector<T, kWidth>{};
}
#endif

}  // namespace onnxopt
