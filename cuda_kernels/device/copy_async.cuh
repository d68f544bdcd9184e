// Copies from global into shared memory while the threads that asked for them work on something else.
#pragma once

#include "device/dtypes.cuh"

namespace onnxopt {

// Copies one vector from global into shared memory, without registers and without waiting where the GPU can (sm_80).
template <typename V>
__device__ inline void copy_async(V* to, const V* from) {
#if __CUDA_ARCH__ >= 800
  static_assert(sizeof(V) == 16 || sizeof(V) == 8 || sizeof(V) == 4, "what cp.async can copy");
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  if constexpr (sizeof(V) == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(from), "n"(sizeof(V)) : "memory");
  }
#else
  *to = *from;
#endif
}

// Copies kBytes, 4, 8 or 16 and aligned to them, or zeros where there is nothing to copy; `from` is not read then.
template <int kBytes>
__device__ inline void copy_or_zero_async(void* to, const void* from, bool exists) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "what cp.async can copy");
#if __CUDA_ARCH__ >= 800
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  const int bytes = exists ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from), "n"(kBytes), "r"(bytes)
                 : "memory");
  }
#else
  struct alignas(kBytes) Words {
    uint32_t at[kBytes / 4];
  };
  *static_cast<Words*>(to) = exists ? *static_cast<const Words*>(from) : Words{};
#endif
}

// Copies the first `bytes` of kBytes, an even number, and zeros behind them; `from` is aligned to kBytes, 4 or 8.
template <int kBytes>
__device__ inline void copy_part_async(void* to, const void* from, int bytes) {
  static_assert(kBytes == 4 || kBytes == 8, "what cp.async can copy in part");
#if __CUDA_ARCH__ >= 800
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from), "n"(kBytes), "r"(bytes)
               : "memory");
#else
  for (int i = 0; i < kBytes / 2; ++i) {
    static_cast<uint16_t*>(to)[i] = 2 * i < bytes ? static_cast<const uint16_t*>(from)[i] : 0;
  }
#endif
}

// Until everything that this thread copies has arrived.
__device__ inline void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Ends the group of copies that this thread has asked for since the last one.
__device__ inline void end_group() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Until all groups of this thread's copies but the newest kLeft have arrived.
template <int kLeft>
__device__ inline void wait_for_groups() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
#endif
}

}  // namespace onnxopt
