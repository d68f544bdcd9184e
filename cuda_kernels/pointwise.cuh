// One pass over the domain: load every input once, run the program on each element, store every output once.
//
// A block owns kThreads * kUnroll vectors of kWidth neighbouring elements. A thread loads all of its vectors before it
// computes on the first, so that kUnroll * inputs loads are in flight; neighbouring threads touch neighbouring vectors.
// The last count % kWidth elements, and general variants whose operands no vector fits, go element by element.
#pragma once

#include "abi.h"
#include "approximate.cuh"
#include "dtypes.cuh"
#include "index.cuh"
#include "scalar.cuh"
#include "tuple.cuh"
#include "vector.cuh"

namespace onnxopt {

// A vector that lies in one cell: neighbours in memory, or one element for all.
template <char kMode, typename T, int kWidth, typename Index>
__device__ inline Vector<T, kWidth> load_cell(const Input<Index>& input, Index i) {
  const T* cell = static_cast<const T*>(input.data) + offset<kMode>(input, i);
  if (kMode != kModeColumn && (input.flags & kInner)) return load_vector<T, kWidth>(cell);
  return splat<T, kWidth>(*cell);
}

template <char kMode, typename T, int kWidth, typename Index>
__device__ inline Vector<T, kWidth> gather(const Input<Index>& input, Index i) {
  Vector<T, kWidth> gathered;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    gathered.at[j] = static_cast<const T*>(input.data)[offset<kMode>(input, static_cast<Index>(i + j))];
  }
  return gathered;
}

template <char kMode, typename T, int kWidth, typename Index>
__device__ inline Vector<T, kWidth> load(const Input<Index>& input, Index i) {
  const T* data = static_cast<const T*>(input.data);
  if constexpr (kMode == kModeFlat) {
    return load_vector<T, kWidth>(data + i);
  } else if constexpr (kMode == kModeScalar) {
    return splat<T, kWidth>(data[0]);
  } else if constexpr (kWidth == 1) {
    return {data[offset<kMode>(input, i)]};
  } else if constexpr (kMode == kModeAny) {
    return input.flags & kFlat ? load_vector<T, kWidth>(data + i) : load_cell<kMode, T, kWidth>(input, i);
  } else {
    return input.flags & kCell ? load_cell<kMode, T, kWidth>(input, i) : gather<kMode, T, kWidth>(input, i);
  }
}

template <typename Op, typename Inputs, typename Outputs, typename I, typename O>
struct Body;

// Op is generated: its Inputs and Outputs list storage dtypes, apply(x0, x1, ..., y0&, ...) is the program.
template <typename Op, typename... In, typename... Out, int... I, int... O>
struct Body<Op, List<In...>, List<Out...>, Indices<I...>, Indices<O...>> {
  template <typename Index>
  using Parameters = Params<Index, sizeof...(In), sizeof...(Out)>;
  template <int kWidth>
  using Loaded = Tuple<Vector<In, kWidth>...>;
  template <int kWidth>
  using Stored = Tuple<Vector<Out, kWidth>...>;

  template <int kWidth, char... kModes, typename Index>
  __device__ static void load_all(const Parameters<Index>& params, Index i, Loaded<kWidth>& in) {
    ((get<I>(in).value = load<kModes, In, kWidth>(params.input[I], i)), ...);
  }

  template <int kWidth>
  __device__ static void compute(const Loaded<kWidth>& in, Stored<kWidth>& out) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      Tuple<typename Compute<Out>::type...> y;
      Op::apply(widen(get<I>(in).value.at[j])..., get<O>(y).value...);
      ((get<O>(out).value.at[j] = Narrow<Out>::from(get<O>(y).value)), ...);
    }
  }

  template <int kWidth, typename Index>
  __device__ static void store_all(const Parameters<Index>& params, Index i, const Stored<kWidth>& out) {
    (store(static_cast<Out*>(params.output[O]), i, get<O>(out).value), ...);
  }

  template <typename T, int kWidth, typename Index>
  __device__ static void store(T* data, Index i, const Vector<T, kWidth>& vector) {
    if (data != nullptr) store_vector(data + i, vector);
  }

  template <char... kModes, typename Index>
  __device__ static void element(const Parameters<Index>& params, Index i) {
    Loaded<1> in;
    Stored<1> out;
    load_all<1, kModes...>(params, i, in);
    compute<1>(in, out);
    store_all<1>(params, i, out);
  }

  // Whether every operand can be moved in vectors: what the host guarantees for all but the general variants.
  template <int kWidth, typename Index>
  __device__ static bool vectors_fit(const Parameters<Index>& params) {
    return (((params.input[I].flags & (kFlat | kCell)) != 0) && ...) &&
           ((reinterpret_cast<uint64_t>(params.output[O]) % sizeof(Vector<Out, kWidth>) == 0) && ...);
  }
};

template <typename Op, typename Index, int kWidth, int kUnroll, int kThreads, char... kModes>
__device__ inline void pointwise(const Params<Index, Op::Inputs::size, Op::Outputs::size>& params) {
  using B = Body<Op, typename Op::Inputs, typename Op::Outputs, typename MakeIndices<Op::Inputs::size>::type,
                 typename MakeIndices<Op::Outputs::size>::type>;
  constexpr bool kGeneral = ((kModes == kModeAny) || ...);
  constexpr Index kStep = kThreads * kWidth;
  const Index count = static_cast<Index>(params.count);
  const Index tile = static_cast<Index>(blockIdx.x) * (kStep * kUnroll);
  if (kGeneral && !B::template vectors_fit<kWidth>(params)) {
    const Index end = count - tile < kStep * kUnroll ? count : tile + kStep * kUnroll;
#pragma unroll 1
    for (Index i = tile + threadIdx.x; i < end; i += kThreads) B::template element<kModes...>(params, i);
    return;
  }
  const Index first = tile + threadIdx.x * kWidth;
  const Index whole = count / kWidth * kWidth;
  typename B::template Loaded<kWidth> in[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const Index i = first + u * kStep;
    if (i < whole) B::template load_all<kWidth, kModes...>(params, i, in[u]);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const Index i = first + u * kStep;
    if (i >= whole) break;
    typename B::template Stored<kWidth> out;
    B::template compute<kWidth>(in[u], out);
    B::template store_all<kWidth>(params, i, out);
  }
  const Index rest = whole + threadIdx.x;
  if (whole >= tile && whole - tile < kStep * kUnroll && rest < count) B::template element<kModes...>(params, rest);
}

}  // namespace onnxopt
