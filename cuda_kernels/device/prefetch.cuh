// Asking the L2 cache for memory ahead of reading it.
#pragma once

namespace onnxopt {

// Of `bytes`, a multiple of 16 and aligned to 16, nothing is read: a kernel may ask for what the one ahead of it
// writes.
__device__ inline void prefetch(const void* from, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

}  // namespace onnxopt
