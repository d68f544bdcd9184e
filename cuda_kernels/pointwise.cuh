// One pass over the domain: load every input once, run the program on each element, store every output once.
//
// A block owns kThreads * kUnroll vectors of kWidth neighbouring elements. A thread loads all of its vectors before it
// computes on the first, so that kUnroll * inputs loads are in flight; neighbouring threads touch neighbouring vectors.
// The last count % kWidth elements, and general variants whose outputs no vector fits, go element by element.
#pragma once

#include "abi.h"
#include "approximate.cuh"
#include "dtypes.cuh"
#include "index.cuh"
#include "scalar.cuh"
#include "tuple.cuh"
#include "vector.cuh"

namespace onnxopt {

template <typename Op, int kAccess, char kMode, typename T, int kWidth, typename Index>
__device__ inline Vector<T, kWidth> gather(const Input<Index>& input, Index i) {
  Vector<T, kWidth> gathered;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    gathered.at[j] = static_cast<const T*>(input.data)[offset<Op, kAccess, kMode>(input, static_cast<Index>(i + j))];
  }
  return gathered;
}

template <typename Op, int kAccess, char kMode, typename T, int kWidth, typename Index>
__device__ inline Vector<T, kWidth> load(const Input<Index>& input, Index i) {
  const T* data = static_cast<const T*>(input.data);
  if constexpr (is_scalar(kMode)) {
    return splat<T, kWidth>(data[0]);
  } else if constexpr (kWidth == 1) {
    return {data[offset<Op, kAccess, kMode>(input, i)]};
  } else if constexpr (is_flat(kMode) || is_neighbours(kMode)) {
    return load_vector<T, kWidth>(data + offset<Op, kAccess, kMode>(input, i));
  } else if constexpr (is_cell(kMode)) {
    return splat<T, kWidth>(data[offset<Op, kAccess, kMode>(input, i)]);
  } else if constexpr (is_any(kMode)) {
    if (input.flags & kFlat) return load_vector<T, kWidth>(data + i);
    if (!(input.flags & kCell)) return gather<Op, kAccess, kMode, T, kWidth>(input, i);
    const T* cell = data + offset<Op, kAccess, kMode>(input, i);
    return input.flags & kInner ? load_vector<T, kWidth>(cell) : splat<T, kWidth>(*cell);
  } else {
    return gather<Op, kAccess, kMode, T, kWidth>(input, i);
  }
}

template <int kCount, int kWidth>
struct Predicates {
  bool at[kCount > 0 ? kCount : 1][kWidth];
};

// A load that is not made where a guard does not hold. kUniform: they are the same for a whole vector.
template <typename Op, int kAccess, char kMode, bool kUniform, typename T, int kWidth, int kCount, typename Index>
__device__ inline Vector<T, kWidth> load_guarded(const Input<Index>& input, const Predicates<kCount, kWidth>& holding,
                                                 Index i) {
  constexpr unsigned kGuards = Op::guards[kAccess];
  if constexpr (kGuards == 0) {
    return load<Op, kAccess, kMode, T, kWidth>(input, i);
  } else {
    Vector<T, kWidth> loaded;
    constexpr int kLoads = kUniform ? 1 : kWidth;
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      bool inside = true;
#pragma unroll
      for (int c = 0; c < kCount; ++c) {
        if (kGuards >> c & 1U) inside = inside && holding.at[c][j];
      }
      if constexpr (kUniform) {
        loaded = splat<T, kWidth>(T{});
        if (inside) loaded = load<Op, kAccess, kMode, T, kWidth>(input, i);
      } else {
        loaded.at[j] = T{};
        if (inside)
          loaded.at[j] =
              static_cast<const T*>(input.data)[offset<Op, kAccess, kMode>(input, static_cast<Index>(i + j))];
      }
    }
    return loaded;
  }
}

// The letters of a variant: those of the inputs first, then those of the conditions.
template <char... kModes>
struct Modes {
  static constexpr char at[sizeof...(kModes)] = {kModes...};

  // Whether all of these conditions, which follow `inputs` inputs, are the same for a whole vector.
  static constexpr bool uniform(unsigned guards, int inputs) {
    for (int k = inputs; k < static_cast<int>(sizeof...(kModes)); ++k) {
      if ((guards >> (k - inputs) & 1U) && !is_uniform(at[k])) return false;
    }
    return true;
  }
  static constexpr bool has_any = (is_any(kModes) || ...);
};

template <typename Op, typename Inputs, typename Outputs, typename I, typename O, typename C>
struct Body;

// Op is generated: its Inputs and Outputs list storage dtypes, kConditions and guards (of each input) tell of
// conditions, terms or at (of each input, then each condition) of the index, and apply(x0, x1, ..., c0, c1, ..., y0&,
// ...) is the program.
template <typename Op, typename... In, typename... Out, int... I, int... O, int... C>
struct Body<Op, List<In...>, List<Out...>, Indices<I...>, Indices<O...>, Indices<C...>> {
  static constexpr int kInputs = sizeof...(In);
  static constexpr int kConditions = sizeof...(C);
  template <typename Index>
  using Parameters = Params<Index, kInputs, sizeof...(Out), kConditions>;
  template <int kWidth>
  struct Loaded {
    Tuple<Vector<In, kWidth>...> input;
    Predicates<kConditions, kWidth> holding;
  };
  template <int kWidth>
  using Stored = Tuple<Vector<Out, kWidth>...>;

  template <int kWidth, typename M, typename Index>
  __device__ static void evaluate_conditions(const Parameters<Index>& params, Index i, Loaded<kWidth>& in) {
    (evaluate_condition<kWidth, M::at[kInputs + C], C>(params.condition[C], i, in.holding.at[C]), ...);
  }

  template <int kWidth, char kMode, int kCondition, typename Index>
  __device__ static void evaluate_condition(const IndexRange<Index>& condition, Index i, bool (&at)[kWidth]) {
    if constexpr (is_uniform(kMode)) {
      const bool all = holds<Op, kCondition>(condition, i);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) at[j] = all;
    } else {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) at[j] = holds<Op, kCondition>(condition, static_cast<Index>(i + j));
    }
  }

  template <int kWidth, typename M, typename Index>
  __device__ static void load_all(const Parameters<Index>& params, Index i, Loaded<kWidth>& in) {
    evaluate_conditions<kWidth, M>(params, i, in);
    (load_one<I, In, kWidth, M>(params, i, in), ...);
  }

  // Inputs that go through shared memory are already there.
  template <int kInput, typename T, int kWidth, typename M, typename Index>
  __device__ static void load_one(const Parameters<Index>& params, Index i, Loaded<kWidth>& in) {
    constexpr unsigned kGuards = Op::guards[kInput];
    if constexpr (!is_transposed(M::at[kInput])) {
      get<kInput>(in.input).value = load_guarded<Op, kInput, M::at[kInput], M::uniform(kGuards, kInputs), T, kWidth>(
          params.input[kInput], in.holding, i);
    }
  }

  template <int kWidth>
  __device__ static void compute(const Loaded<kWidth>& in, Stored<kWidth>& out) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      Tuple<typename Compute<Out>::type...> y;
      Op::apply(widen(get<I>(in.input).value.at[j])..., in.holding.at[C][j]..., get<O>(y).value...);
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

  template <typename M, typename Index>
  __device__ static void element(const Parameters<Index>& params, Index i) {
    Loaded<1> in;
    Stored<1> out;
    load_all<1, M>(params, i, in);
    compute<1>(in, out);
    store_all<1>(params, i, out);
  }

  // Whether the outputs can be written in vectors: what the host guarantees for all but the general variants.
  template <int kWidth, typename Index>
  __device__ static bool outputs_are_aligned(const Parameters<Index>& params) {
    return ((reinterpret_cast<uint64_t>(params.output[O]) % sizeof(Vector<Out, kWidth>) == 0) && ...);
  }
};

template <typename Op>
using BodyOf = Body<Op, typename Op::Inputs, typename Op::Outputs, typename MakeIndices<Op::Inputs::size>::type,
                    typename MakeIndices<Op::Outputs::size>::type, typename MakeIndices<Op::kConditions>::type>;

template <typename Op, typename Index, int kWidth, int kUnroll, int kThreads, char... kModes>
__device__ inline void pointwise(const Params<Index, Op::Inputs::size, Op::Outputs::size, Op::kConditions>& params) {
  using B = BodyOf<Op>;
  using M = Modes<kModes...>;
  constexpr Index kStep = kThreads * kWidth;
  const Index count = static_cast<Index>(params.count);
  const Index tile = static_cast<Index>(blockIdx.x) * (kStep * kUnroll);
  if (M::has_any && !B::template outputs_are_aligned<kWidth>(params)) {
    const Index end = count - tile < kStep * kUnroll ? count : tile + kStep * kUnroll;
#pragma unroll 1
    for (Index i = tile + threadIdx.x; i < end; i += kThreads) B::template element<M>(params, i);
    return;
  }
  const Index first = tile + threadIdx.x * kWidth;
  const Index whole = count / kWidth * kWidth;
  typename B::template Loaded<kWidth> in[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const Index i = first + u * kStep;
    if (i < whole) B::template load_all<kWidth, M>(params, i, in[u]);
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
  if (whole >= tile && whole - tile < kStep * kUnroll && rest < count) B::template element<M>(params, rest);
}

}  // namespace onnxopt
