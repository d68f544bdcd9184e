// The shared memory that the host asked for.
#pragma once

namespace onnxopt {

#ifdef __CUDACC__  // g++ runs kernels in the tests, with memory of its own
__device__ inline unsigned char* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char memory[];
  return memory;
}
#endif

}  // namespace onnxopt
