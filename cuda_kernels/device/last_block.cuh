// Blocks that share work and end in any order: the last one goes on with what all of them have found.
#pragma once

namespace onnxopt {

// Adds 1, or goes from `last` to 0. What the block has written before is there for whoever counts behind it, and what
// those had written who have counted before is there behind this.
__device__ inline unsigned count_around(unsigned* count, unsigned last) {
#if __CUDA_ARCH__ >= 700
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(count), "r"(last) : "memory");
  return before;
#else
  return atomicInc(count, last);  // g++ runs one block after the other
#endif
}

// Whether this block is the last one of `blocks` to get here; all threads of a block call it. What the others have
// written before is there then, for load_written (vector.cuh). ended: 0 before, and 0 again behind the last block.
__device__ inline bool is_last_block(unsigned* ended, unsigned blocks) {
  __shared__ unsigned before;
  __syncthreads();
  if (threadIdx.x == 0) before = count_around(ended, blocks - 1);
  __syncthreads();
  return before == blocks - 1;
}

}  // namespace onnxopt
