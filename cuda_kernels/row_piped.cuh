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
// neighbours. kSame: those of them that are the same for every row, so that they stay there.
template <typename Op, int kWidth, int kVectors, int kThreads, unsigned kMask, unsigned kSame, typename Inputs,
          typename I>
struct Slots;

template <typename Op, int kWidth, int kVectors, int kThreads, unsigned kMask, unsigned kSame, typename... In, int... I>
struct Slots<Op, kWidth, kVectors, kThreads, kMask, kSame, List<In...>, Indices<I...>> {
  static constexpr unsigned kKept = kSame;

  unsigned char* memory;

  template <int kInput>
  static constexpr unsigned begin() {
    unsigned bytes = 0;
    ((bytes += (I < kInput && (kMask >> I & 1u)) ? unsigned(sizeof(Vector<In, kWidth>)) * kVectors * kThreads : 0u),
     ...);
    return bytes;
  }

  template <int kInput, typename T>
  __device__ Vector<T, kWidth>* slot(int v) const {
    return reinterpret_cast<Vector<T, kWidth>*>(memory + begin<kInput>()) + v * kThreads + threadIdx.x;
  }

  // Has the vectors of inputs in kWanted copied that begin at element i of them.
  template <unsigned kWanted, typename Params, typename Index>
  __device__ void fetch(const Params& params, Index i, int v) const {
    (
        [&] {
          if constexpr ((kMask & kWanted) >> I & 1u) {
            const In* const data = static_cast<const In*>(params.input[I].data) + i;
            copy_async(slot<I, In>(v), reinterpret_cast<const Vector<In, kWidth>*>(data));
          }
        }(),
        ...);
  }

  template <unsigned kWanted, typename Loaded>
  __device__ void take(int v, Loaded& in) const {
    (
        [&] {
          if constexpr ((kMask & kWanted) >> I & 1u) get<I>(in).value = *slot<I, In>(v);
        }(),
        ...);
  }
};

// kMask: inputs, all of mode F or K, whose elements come through shared memory; the block has as much as they need.
// Those of mode K are copied once.
template <typename Op, typename Index, int kWidth, int kVectors, int kThreads, int kCluster, int kColumns,
          unsigned kMask, char... kModes>
__device__ inline void piped(const RowParams<Index, Op::Inputs::size, Op::Outputs::size>& params) {
  begin_cluster<kCluster>(typename Op::Stages());
  wait_for_previous();
  constexpr int kLanes = kThreads * kCluster;
  constexpr unsigned kNext = kMask & flat_inputs<kModes...>();  // the others are the same for every row
  constexpr unsigned kSame = kMask & ~kNext;
  using B = RowBodyOf<Op, kWidth>;
  using S = Slots<Op, kWidth, kVectors, kThreads, kMask, kSame, typename Op::Inputs,
                  typename MakeIndices<Op::Inputs::size>::type>;
  constexpr unsigned kEarly = (B::kBytes * kVectors <= kMostPrefetched ? ~0u : flat_inputs<kModes...>()) & ~kSame;
  const S slots{dynamic_shared()};
  const int lane = blockIdx.x % kCluster * kThreads + threadIdx.x;
  const Index step = gridDim.x / kCluster;
  const Index rows = static_cast<Index>(params.rows);
  const Index columns = kColumns > 0 ? kColumns : static_cast<Index>(params.columns);
  Index row = blockIdx.x / kCluster;
  const auto fetch = [&](auto wanted, Index first) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const Index k = static_cast<Index>((lane + v * kLanes) * kWidth);
      if (k < columns) slots.template fetch<decltype(wanted)::value>(params, first + k, v);
    }
  };
  if (row < rows) fetch(Constant<kNext>(), row * columns);
  fetch(Constant<kSame>(), Index{0});
  join_cluster<kCluster>();
  int turn = 0;
#pragma unroll 1
  for (; row < rows; row += step, ++turn) {
    Held<Op, Index, kWidth, kVectors, kLanes, kThreads, kCluster, kColumns, false, S, kModes...> part{
        params, row * columns, columns, lane, true,
        turn,   slots,         {},      {},   B::template bases<kModes...>(params, row * columns),
        {}};
    part.begin();
    part.template load<kEarly & ~kMask>();
    wait_for_copies();
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (part.has(v)) slots.template take<kNext>(v, part.in[v]);
    }
    if (row + step < rows) fetch(Constant<kNext>(), (row + step) * columns);
    part.template stages<kEarly | kNext>(typename Op::Stages());
    part.end(row);
  }
}

}  // namespace onnxopt
