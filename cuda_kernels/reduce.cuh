// Reducing over the lanes of a warp, the warps of a block and the blocks of a cluster.
//
// What is reduced is a Partial, a plain struct of 4-byte words that a generated Stage knows to merge and to exchange
// between the lanes of a warp. Every lane ends with the same bits, as merging commutes.
#pragma once

#include "dtypes.cuh"
#include "scalar.cuh"

namespace onnxopt {

// A template, so that a function is found where it is used and NVRTC compiles none that is not.
template <typename T>
__device__ inline T shuffle_xor(T x, int mask) {
  if constexpr (sizeof(T) < 4) {
    return static_cast<T>(__shfl_xor_sync(0xffffffffu, static_cast<int>(x), mask));
  } else {
    return __shfl_xor_sync(0xffffffffu, x, mask);
  }
}

// What leaves a sum, product, maximum or minimum as it is.
template <typename T>
struct Identity {
  __device__ static T sum() { return T(0); }
  __device__ static T prod() { return T(1); }
  __device__ static T max() {
    if constexpr (T(0.5) != T(0)) {
      return -T(infinity());
    } else {
      return T(-1) < T(0) ? static_cast<T>(T(1) << (sizeof(T) * 8 - 1)) : T(0);
    }
  }
  __device__ static T min() {
    if constexpr (T(0.5) != T(0)) {
      return T(infinity());
    } else {
      return static_cast<T>(~Identity<T>::max());
    }
  }
};

__device__ inline void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// The Partial that lies at `local` in the shared memory of block `rank` of this cluster.
template <typename Partial>
__device__ inline Partial remote(const Partial* local, unsigned rank) {
  Partial result;
#if __CUDA_ARCH__ >= 900
  uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(local));
  asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(rank));
#pragma unroll
  for (unsigned k = 0; k < sizeof(Partial) / 4; ++k) {
    uint32_t word;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(word) : "r"(address + 4 * k) : "memory");
    reinterpret_cast<uint32_t*>(&result)[k] = word;
  }
#endif
  return result;
}

template <typename Stage, int kLanes>
__device__ inline void reduce_lanes(typename Stage::Partial& partial) {
#pragma unroll
  for (int mask = kLanes / 2; mask > 0; mask /= 2) Stage::merge(partial, Stage::exchange(partial, mask));
}

// Reduces over the kLanes threads of a row: a power of 2 within a block of kThreads, or all of a cluster. Every thread
// of the block takes part. turn: 0 and 1 alternate where a block reduces row after row, so that a block which is ahead
// writes nothing that another one still reads.
template <typename Stage, int kLanes, int kThreads, int kCluster>
__device__ inline void reduce(typename Stage::Partial& partial, int turn = 0) {
  using Partial = typename Stage::Partial;
  reduce_lanes<Stage, (kLanes < 32 ? kLanes : 32)>(partial);
  if constexpr (kLanes > 32) {
    constexpr int kWarps = (kLanes < kThreads ? kLanes : kThreads) / 32;  // of a row, in this block
    __shared__ Partial both[2][kThreads / 32];
    Partial* const parts = both[turn];
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (lane == 0) parts[warp] = partial;
    if constexpr (kCluster == 1) {
      __syncthreads();
      partial = parts[warp / kWarps * kWarps + lane % kWarps];
      reduce_lanes<Stage, kWarps>(partial);
    } else {
      cluster_barrier();
      partial = Stage::identity();
      for (int k = lane; k < kWarps * kCluster; k += 32) Stage::merge(partial, remote(parts + k % kWarps, k / kWarps));
      reduce_lanes<Stage, 32>(partial);
    }
  }
}

}  // namespace onnxopt
