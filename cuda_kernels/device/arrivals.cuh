// Who of a block has come how far: barriers in shared memory, and numbered ones of some of its warps.
#pragma once

#include "device/matrix_words.cuh"

namespace onnxopt {

// `arrivals` of them end a phase.
__device__ inline void make_barrier(uint32_t barrier, unsigned arrivals) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
#endif
}

// New barriers are there for the hardware that copies.
__device__ inline void show_barriers() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

__device__ inline void arrive(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}

// Once what this thread copies has arrived.
__device__ inline void arrive_with_copies(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
#endif
}

// Until the phase has ended whose number's lowest bit this is.
__device__ inline void wait_for_phase(uint32_t barrier, unsigned phase) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{.reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @!done bra again;}" ::"r"(
          barrier),
      "r"(phase)
      : "memory");
#endif
}

// Until kThreads threads wait for the number, or have passed by it.
template <int kThreads>
__device__ inline void wait_for_warps(unsigned number) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}

// The same, and whether any of these threads says so.
template <int kThreads>
__device__ inline bool any_of_warps(unsigned number, bool of_thread) {
  unsigned any;
  asm volatile(
      "{\n"
      "  .reg .pred mine, all;\n"
      "  setp.ne.u32 mine, %1, 0;\n"
      "  barrier.cta.red.or.pred all, %2, %3, mine;\n"
      "  selp.u32 %0, 1, 0, all;\n"
      "}"
      : "=r"(any)
      : "r"(static_cast<unsigned>(of_thread)), "r"(number), "n"(kThreads)
      : "memory");
  return any != 0;
}

template <int kThreads>
__device__ inline void pass_by(unsigned number) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}

}  // namespace onnxopt
