// Copies of whole stretches from global into shared memory, each asked for by one thread of a warp and awaited by all
// (sm_90). Elsewhere the thread that asks copies.
#pragma once

#include "device/dtypes.cuh"

namespace onnxopt {

constexpr unsigned kBulkAccess = 16;  // bytes that addresses and lengths of a stretch are multiples of

// In shared memory; of one warp. A round ends when all bytes that the thread expects have arrived.
struct CopyBarrier {
  unsigned long long word;

  __device__ void begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address()) : "memory");
#endif
  }

  __device__ void expect(unsigned bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
#endif
  }

  __device__ void copy(void* to, const void* from, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
    const uint32_t target = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(target),
        "l"(from), "r"(bytes), "r"(address())
        : "memory");
#else
    for (unsigned i = 0; i < bytes / sizeof(uint32_t); ++i) {
      static_cast<uint32_t*>(to)[i] = static_cast<const uint32_t*>(from)[i];
    }
#endif
  }

  // Rounds are even and odd in turn.
  __device__ void wait(unsigned odd) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::
            "r"(address()),
        "r"(odd)
        : "memory");
#else
    __syncwarp();
#endif
  }

 private:
#if __CUDA_ARCH__ >= 900
  __device__ uint32_t address() const { return static_cast<uint32_t>(__cvta_generic_to_shared(&word)); }
#endif
};

// What begin() wrote is seen by the copies that the same thread asks for afterwards.
__device__ inline void show_barriers() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

}  // namespace onnxopt
