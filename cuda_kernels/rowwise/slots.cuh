// Shared memory that inputs are copied to while a block works on something else.
#pragma once

#include "device/copy_async.cuh"
#include "device/dynamic_shared.cuh"
#include "rowwise/body.cuh"

namespace onnxopt {

// Shared memory of a block: for every input of kNext, kDepth rows of kVectors vectors a thread, for every input of
// kSame, which all rows share, one. Neighbouring threads' vectors are neighbours.
template <typename Op, int kWidth, int kVectors, int kThreads, int kDepth, unsigned kNext, unsigned kSame,
          typename Inputs, typename I>
struct Slots;

template <typename Op, int kWidth, int kVectors, int kThreads, int kDepth, unsigned kNext, unsigned kSame,
          typename... In, int... I>
struct Slots<Op, kWidth, kVectors, kThreads, kDepth, kNext, kSame, List<In...>, Indices<I...>> {
  static constexpr unsigned kKept = kSame;
  static constexpr bool kAny = true;

  unsigned char* memory;

  template <int kInput>
  static constexpr unsigned begin() {
    unsigned vectors = 0;
    ((vectors += I >= kInput ? 0u : unsigned(sizeof(In)) * ((kNext >> I & 1u) * kDepth + (kSame >> I & 1u))), ...);
    return vectors * kWidth * kVectors * kThreads;
  }

  template <int kInput, typename T>
  __device__ Vector<T, kWidth>* slot(int v, int place) const {
    const int at = ((kNext >> kInput & 1u) != 0 ? place * kVectors : 0) + v;
    return reinterpret_cast<Vector<T, kWidth>*>(memory + begin<kInput>()) + at * kThreads + threadIdx.x;
  }

  // Has the vectors of inputs in kWanted copied that begin at element i of them.
  template <unsigned kWanted, typename Params, typename Index>
  __device__ void fetch(const Params& params, Index i, int v, int place = 0) const {
    (
        [&] {
          if constexpr ((kWanted >> I & 1u) != 0) {
            const In* const data = static_cast<const In*>(params.input[I].data) + i;
            copy_async(slot<I, In>(v, place), reinterpret_cast<const Vector<In, kWidth>*>(data));
          }
        }(),
        ...);
  }

  template <unsigned kWanted, typename Loaded>
  __device__ void take(int v, Loaded& in, int place = 0) const {
    (
        [&] {
          if constexpr ((kWanted >> I & 1u) != 0) get<I>(in).value = *slot<I, In>(v, place);
        }(),
        ...);
  }
};

}  // namespace onnxopt
