// Reducing over the lanes of a warp, the warps of a block and the blocks of a cluster.
//
// What is reduced is a Partial, a plain struct of 4-byte words that a generated Stage knows to merge and to exchange
// between the lanes of a warp. Every lane ends with the same bits, as merging commutes.
#pragma once

#include "device/dtypes.cuh"
#include "device/scalar.cuh"
#include "device/shuffle.cuh"
#include "device/tuple.cuh"

namespace onnxopt {

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

// Where the blocks of a cluster leave their partial results of one stage with each other: two places in turn, each with
// an mbarrier that tells when the results of all blocks have arrived. A barrier.cluster would wait for every store of
// the block to reach the L2 cache, those of the row before among them, and drop what the L1 cache holds.
template <typename Stage, int kCluster>
struct Exchange {
  typename Stage::Partial from[2][kCluster];
  unsigned long long arrived[2];
};

template <typename Stage, int kCluster>
__device__ inline Exchange<Stage, kCluster>& exchange_of() {
  __shared__ Exchange<Stage, kCluster> exchange;
  return exchange;
}

template <typename T>
__device__ inline uint32_t address_in_cluster(const T* data) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(data));
}

// To be called by every thread of a cluster: prepares the exchanges of all stages, and has the other blocks know.
template <int kCluster, typename... Stages>
__device__ inline void begin_cluster(List<Stages...>) {
#if __CUDA_ARCH__ >= 900
  if constexpr (kCluster > 1) {
    const auto prepare = [](unsigned long long& barrier) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address_in_cluster(&barrier)) : "memory");
    };
    if (threadIdx.x == 0) {
      ((prepare(exchange_of<Stages, kCluster>().arrived[0]), prepare(exchange_of<Stages, kCluster>().arrived[1])), ...);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  }
#endif
}

// After begin_cluster(), and before anything is reduced: until all blocks of the cluster are ready.
template <int kCluster>
__device__ inline void join_cluster() {
#if __CUDA_ARCH__ >= 900
  if constexpr (kCluster > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// Writes a Partial to where `local` lies in block `rank` of this cluster, and counts its bytes at that block's barrier.
template <typename Partial>
__device__ inline void push(const Partial* local, const unsigned long long* barrier, unsigned rank,
                            const Partial& partial) {
#if __CUDA_ARCH__ >= 900
  uint32_t to, counted;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(address_in_cluster(local)), "r"(rank));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(counted) : "r"(address_in_cluster(barrier)), "r"(rank));
#pragma unroll
  for (unsigned k = 0; k < sizeof(Partial) / 4; ++k) {
    const uint32_t word = reinterpret_cast<const uint32_t*>(&partial)[k];
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to + 4 * k),
                 "r"(word), "r"(counted)
                 : "memory");
  }
#endif
}

// Tells a barrier of this block how many bytes will arrive.
__device__ inline void expect(const unsigned long long* barrier, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address_in_cluster(barrier)), "r"(bytes)
               : "memory");
#endif
}

// Until the phase of this parity has ended: all that was expected is there.
__device__ inline void wait_for(const unsigned long long* barrier, unsigned parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred arrived;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 arrived, [%0], %1;\n"
      "@!arrived bra again;\n}" ::"r"(address_in_cluster(barrier)),
      "r"(parity)
      : "memory");
#endif
}

template <typename Stage, int kLanes>
__device__ inline void reduce_lanes(typename Stage::Partial& partial) {
#pragma unroll
  for (int mask = kLanes / 2; mask > 0; mask /= 2) Stage::merge(partial, Stage::exchange(partial, mask));
}

// Reduces over the kLanes threads of a row: a power of 2 within a block of kThreads, or all of a cluster. Every thread
// of the block takes part, and of a cluster all have been through join_cluster(). turn: counts the rows of a block that
// reduces row after row; places alternate, so that a block which is ahead writes nothing that another one still reads.
template <typename Stage, int kLanes, int kThreads, int kCluster>
__device__ inline void reduce(typename Stage::Partial& partial, int turn = 0) {
  using Partial = typename Stage::Partial;
  reduce_lanes<Stage, (kLanes < 32 ? kLanes : 32)>(partial);
  if constexpr (kLanes > 32) {
    constexpr int kWarps = (kLanes < kThreads ? kLanes : kThreads) / 32;  // of a row, in this block
    __shared__ Partial both[2][kThreads / 32];
    Partial* const parts = both[turn & 1];
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (lane == 0) parts[warp] = partial;
    __syncthreads();
    if constexpr (kCluster == 1) {
      partial = parts[warp / kWarps * kWarps + lane % kWarps];
      reduce_lanes<Stage, kWarps>(partial);
    } else {
      auto& exchange = exchange_of<Stage, kCluster>();
      const Partial* const from = exchange.from[turn & 1];
      const unsigned long long* const arrived = &exchange.arrived[turn & 1];
      if (warp == 0) {
        if (lane == 0) expect(arrived, kCluster * sizeof(Partial));
        partial = parts[lane % kWarps];
        reduce_lanes<Stage, kWarps>(partial);
        if (lane < kCluster) push(from + blockIdx.x % kCluster, arrived, lane, partial);
      }
      wait_for(arrived, turn >> 1 & 1);
      partial = from[lane % kCluster];
      reduce_lanes<Stage, kCluster>(partial);
    }
  }
}

}  // namespace onnxopt
