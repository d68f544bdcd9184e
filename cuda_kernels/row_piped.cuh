// piped: held, by blocks (or clusters) that stay for row after row. While one row is reduced and stored, the next one's
// elements are on their way into shared memory, so that the memory is never idle.
//
// Every thread copies what it will work on itself, into a place that no other thread reads: no barrier is needed.
#pragma once

#include "row_held.cuh"

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

// Until everything that this thread copies has arrived.
__device__ inline void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// The shared memory that the host asked for.
#ifdef __CUDACC__  // g++ runs this file in the tests, with memory of its own
__device__ inline unsigned char* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char memory[];
  return memory;
}
#endif

// Shared memory of a block: for every input of kMask, kVectors vectors a thread. Neighbouring threads' vectors are
// neighbours.
template <typename Op, int kWidth, int kVectors, int kThreads, unsigned kMask, typename Inputs, typename I>
struct Slots;

template <typename Op, int kWidth, int kVectors, int kThreads, unsigned kMask, typename... In, int... I>
struct Slots<Op, kWidth, kVectors, kThreads, kMask, List<In...>, Indices<I...>> {
  template <int kInput>
  static constexpr unsigned begin() {
    unsigned bytes = 0;
    ((bytes += (I < kInput && (kMask >> I & 1u)) ? unsigned(sizeof(Vector<In, kWidth>)) * kVectors * kThreads : 0u),
     ...);
    return bytes;
  }

  template <int kInput, typename T>
  __device__ static Vector<T, kWidth>* slot(unsigned char* memory, int v) {
    return reinterpret_cast<Vector<T, kWidth>*>(memory + begin<kInput>()) + v * kThreads + threadIdx.x;
  }

  template <typename Params, typename Index>
  __device__ static void fetch(const Params& params, unsigned char* memory, Index i, int v) {
    (
        [&] {
          if constexpr ((kMask >> I & 1u) != 0) {
            const In* const data = static_cast<const In*>(params.input[I].data) + i;
            copy_async(slot<I, In>(memory, v), reinterpret_cast<const Vector<In, kWidth>*>(data));
          }
        }(),
        ...);
  }

  template <typename Loaded>
  __device__ static void take(unsigned char* memory, int v, Loaded& in) {
    (
        [&] {
          if constexpr ((kMask >> I & 1u) != 0) get<I>(in).value = *slot<I, In>(memory, v);
        }(),
        ...);
  }
};

// kMask: inputs, all of mode F, whose elements come through shared memory. The block has as much as they need.
template <typename Op, typename Index, int kWidth, int kVectors, int kThreads, int kCluster, int kColumns,
          unsigned kMask, char... kModes>
__device__ inline void piped(const RowParams<Index, Op::Inputs::size, Op::Outputs::size>& params) {
  constexpr int kLanes = kThreads * kCluster;
  using B = RowBodyOf<Op, kWidth>;
  using S = Slots<Op, kWidth, kVectors, kThreads, kMask, typename Op::Inputs,
                  typename MakeIndices<Op::Inputs::size>::type>;
  constexpr unsigned kEarly = B::kBytes * kVectors <= kMostPrefetched ? ~0u : flat_inputs<kModes...>();
  unsigned char* const memory = dynamic_shared();
  const int lane = blockIdx.x % kCluster * kThreads + threadIdx.x;
  const Index step = gridDim.x / kCluster;
  const Index rows = static_cast<Index>(params.rows);
  const Index columns = kColumns > 0 ? kColumns : static_cast<Index>(params.columns);
  int turn = 0;
  const auto fetch = [&](Index row) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const Index k = static_cast<Index>((lane + v * kLanes) * kWidth);
      if (k < columns) S::fetch(params, memory, row * columns + k, v);
    }
  };
  Index row = blockIdx.x / kCluster;
  if (row < rows) fetch(row);
#pragma unroll 1
  for (; row < rows; row += step, turn ^= 1) {
    Held<Op, Index, kWidth, kVectors, kLanes, kThreads, kCluster, kColumns, false, kModes...> part{
        params, row * columns, columns, lane, true, turn, {}, {}, B::template bases<kModes...>(params, row * columns),
        {}};
    part.begin();
    part.template load<kEarly & ~kMask>();
    wait_for_copies();
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (part.has(v)) S::take(memory, v, part.in[v]);
    }
    if (row + step < rows) fetch(row + step);
    part.template stages<kEarly | kMask>(typename Op::Stages());
    part.end(row);
  }
  if constexpr (kCluster > 1) cluster_barrier();  // until then others may read this block's shared memory
}

}  // namespace onnxopt
