// Blocks that share work and end in any order: the last one goes on with what all of them have found.
#pragma once

namespace onnxopt {

// Whether this block is the last one of `blocks` to get here; all threads of a block call it. What the others have
// written before is there then, for load_written (vector.cuh). ended: 0 before, and 0 again behind the last block.
__device__ inline bool is_last_block(unsigned* ended, unsigned blocks) {
  __shared__ unsigned before;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    before = atomicInc(ended, blocks - 1);
    __threadfence();
  }
  __syncthreads();
  return before == blocks - 1;
}

}  // namespace onnxopt
