// One pass over the domain: load every input once, run the program on each element, store every output once.
//
// A block owns kThreads * kUnroll vectors of kWidth neighbouring elements. A thread loads all of its vectors before it
// computes on the first, so that kUnroll * inputs loads are in flight; neighbouring threads touch neighbouring vectors.
// The last count % kWidth elements, and general variants whose outputs no vector fits, go element by element.
#pragma once

#include "device/approximate.cuh"
#include "device/dtypes.cuh"
#include "device/early_launch.cuh"
#include "device/index.cuh"
#include "device/packed.cuh"
#include "device/scalar.cuh"
#include "device/shifted.cuh"
#include "device/tuple.cuh"
#include "device/vector.cuh"
#include "pointwise/abi.h"

namespace onnxopt {

template <typename Op, int kAccess, char kMode, typename T, int kWidth, typename Index>
__device__ inline Vector<T, kWidth> gather(const T* data, const Input<Index>& input, Index i) {
  Vector<T, kWidth> gathered;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    gathered.at[j] = data[offset<Op, kAccess, kMode>(input, static_cast<Index>(i + j))];
  }
  return gathered;
}

// The same where a run or cell has at least kWidth elements, so that a vector meets one end at most: two offsets tell
// all.
template <typename Op, int kAccess, char kMode, typename T, int kWidth, typename Index>
__device__ inline Vector<T, kWidth> gather_at_ends(const T* data, const Input<Index>& input, Index i) {
  using SignedIndex = typename Signed<Index>::type;
  constexpr int kStep = known_step<Op, kAccess, kMode>();
  const Stretch<Index> here = stretch<Op, kAccess, kMode>(input, i);
  const auto first = offset<Op, kAccess, kMode>(input, i);
  const auto last = offset<Op, kAccess, kMode>(input, static_cast<Index>(i + kWidth - 1));
  Vector<T, kWidth> gathered;
  if constexpr (kStep == 0) {
    const T before = data[first];
    const T behind = data[last];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) gathered.at[j] = static_cast<Index>(j) < here.left ? before : behind;
  } else {
    const Index step = kStep > 0 ? kStep : here.step;
    const Index behind = last - (kWidth - 1) * step;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const Index from = static_cast<Index>(j) < here.left ? static_cast<Index>(first) : behind;
      const SignedIndex start = static_cast<SignedIndex>(from);
      gathered.at[j] =
          kStep > 0 ? data[start + static_cast<SignedIndex>(j)] : data[static_cast<SignedIndex>(from + j * step)];
    }
  }
  return gathered;
}

// Neighbours smaller than a word are read in words, wherever they begin, but at the end of a run.
template <typename Op, int kAccess, char kMode, typename T, int kWidth, typename Index>
__device__ inline Vector<T, kWidth> gather_in_runs(const T* data, const Input<Index>& input, Index i) {
  if constexpr (known_step<Op, kAccess, kMode>() == 1 && sizeof(T) < 4 && kWidth * sizeof(T) >= 4) {
    Unaligned<T, kWidth> read;
    if (stretch<Op, kAccess, kMode>(input, i).left >= read.kReach) {
      read.load(data + offset<Op, kAccess, kMode>(input, i), read.kReach);
    } else {
      read.hold(gather_at_ends<Op, kAccess, kMode, T, kWidth>(data, input, i));
    }
    Vector<T, kWidth> gathered;
#pragma unroll
    for (int w = 0; w < read.kWords; ++w) word(gathered, w) = read.part(w);
    return gathered;
  } else {
    return gather_at_ends<Op, kAccess, kMode, T, kWidth>(data, input, i);
  }
}

// Neighbours in the domain take turns among kRuns runs: element j is the (j / kRuns)th of run j % kRuns.
template <typename Op, int kAccess, typename T, int kWidth, typename Index>
__device__ inline Vector<T, kWidth> load_interleaved(const T* data, const Input<Index>& input, Index i) {
  constexpr int kRuns = Op::runs[kAccess] > 0 ? Op::runs[kAccess] : 1;
  static_assert(kWidth % kRuns == 0, "a vector takes as much from every run");
  Vector<T, kWidth / kRuns> run[kRuns];
#pragma unroll
  for (int r = 0; r < kRuns; ++r) {
    run[r] = load_vector<T, kWidth / kRuns>(data + offset<Op, kAccess, 'V'>(input, static_cast<Index>(i + r)));
  }
  Vector<T, kWidth> loaded;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) loaded.at[j] = run[j % kRuns].at[j / kRuns];
  return loaded;
}

template <typename Op, int kAccess, char kMode, typename T, int kWidth, typename Index>
__device__ inline Vector<T, kWidth> load(const T* data, const Input<Index>& input, Index i) {
  if constexpr (is_scalar(kMode)) {
    return splat<T, kWidth>(data[0]);
  } else if constexpr (kWidth == 1) {
    return {data[offset<Op, kAccess, kMode>(input, i)]};
  } else if constexpr (is_flat(kMode)) {
    return load_vector<T, kWidth>(data + i);
  } else if constexpr (is_neighbours(kMode) && is_row(kMode)) {
    return load_kept<T, kWidth>(data + offset<Op, kAccess, kMode>(input, i));
  } else if constexpr (is_neighbours(kMode)) {
    return load_vector<T, kWidth>(data + offset<Op, kAccess, kMode>(input, i));
  } else if constexpr (is_interleaved(kMode)) {
    return load_interleaved<Op, kAccess, T, kWidth>(data, input, i);
  } else if constexpr (is_cell(kMode)) {
    return splat<T, kWidth>(data[offset<Op, kAccess, kMode>(input, i)]);
  } else if constexpr (is_any(kMode)) {
    if (input.flags & kFlat) return load_vector<T, kWidth>(data + i);
    if (!(input.flags & kCell)) return gather<Op, kAccess, kMode, T, kWidth>(data, input, i);
    const T* cell = data + offset<Op, kAccess, kMode>(input, i);
    return input.flags & kInner ? load_vector<T, kWidth>(cell) : splat<T, kWidth>(*cell);
  } else {
    return gather_in_runs<Op, kAccess, kMode, T, kWidth>(data, input, i);
  }
}

template <typename Op, int kAccess, char kMode, typename T, int kWidth, typename Index>
__device__ inline Vector<T, kWidth> load(const Input<Index>& input, Index i) {
  return load<Op, kAccess, kMode, T, kWidth>(static_cast<const T*>(input.data), input, i);
}

template <int kCount, int kWidth>
struct Predicates {
  bool at[kCount > 0 ? kCount : 1][kWidth];
};

// Where an access reads: accesses of one group differ in their offsets alone and at most one of them is meant, so that
// one load serves all. Op::leader names the first of an access's group.
template <typename T>
struct Source {
  const T* data;
  bool inside;  // whether there is anything to read

  __device__ void take(const void* from, bool holds) {
    data = holds ? static_cast<const T*>(from) : data;
    inside = inside || holds;
  }
};

template <typename Op, int kAccess, typename Holds, typename P, typename T>
__device__ inline void consider(const P& params, const Holds& all_of, Source<T>& source) {
  if constexpr (kAccess < Op::Inputs::size) {
    source.take(params.data[kAccess], all_of(Op::guards[kAccess]));
  }
}

template <typename Op, int kLeader, typename T, typename Holds, typename P, int... I>
__device__ inline Source<T> source_among(const P& params, const Holds& all_of, Indices<I...>) {
  Source<T> source = {static_cast<const T*>(params.data[kLeader]), false};
  (consider<Op, Op::leader[I] == kLeader ? I : Op::Inputs::size>(params, all_of, source), ...);
  return source;
}

// all_of(guards): whether all of these conditions hold.
template <typename Op, int kLeader, typename T, typename Holds, typename P>
__device__ inline Source<T> source_of(const P& params, const Holds& all_of) {
  return source_among<Op, kLeader, T>(params, all_of, typename MakeIndices<Op::Inputs::size>::type());
}

// A load that is not made where its guards do not hold. kUniform: they are the same for a whole vector.
template <typename Op, int kAccess, char kMode, bool kUniform, typename T, int kWidth, int kCount, typename P,
          typename Index>
__device__ inline Vector<T, kWidth> load_guarded(const P& params, const Predicates<kCount, kWidth>& holding, Index i) {
  const Input<Index>& input = params.input[kAccess];
  if constexpr (Op::guards[kAccess] == 0) {
    return load<Op, kAccess, kMode, T, kWidth>(static_cast<const T*>(params.data[kAccess]), input, i);
  } else {
    Vector<T, kWidth> loaded = splat<T, kWidth>(T{});
    constexpr int kLoads = kUniform ? 1 : kWidth;
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const auto all_of = [&](unsigned guards) {
        bool all = true;
#pragma unroll
        for (int c = 0; c < kCount; ++c) all = all && (!(guards >> c & 1U) || holding.at[c][j]);
        return all;
      };
      const Source<T> source = source_of<Op, kAccess, T>(params, all_of);
      if constexpr (kUniform) {
        if (source.inside) loaded = load<Op, kAccess, kMode, T, kWidth>(source.data, input, i);
      } else if (source.inside) {
        loaded.at[j] = source.data[offset<Op, kAccess, kMode>(input, static_cast<Index>(i + j))];
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
// ...) is the program. kPacked: it is there for Packed operands too.
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

  // Inputs that go through shared memory are already there, and an access that does not lead is what its leader is.
  template <int kInput, typename T, int kWidth, typename M, typename Index>
  __device__ static void load_one(const Parameters<Index>& params, Index i, Loaded<kWidth>& in) {
    if constexpr (!is_transposed(M::at[kInput]) && Op::leader[kInput] == kInput) {
      constexpr bool kUniform = M::uniform(guards_of_group(kInput), kInputs);
      get<kInput>(in.input).value = load_guarded<Op, kInput, M::at[kInput], kUniform, T, kWidth>(params, in.holding, i);
    }
  }

  static constexpr unsigned guards_of_group(int leader) {
    return ((Op::leader[I] == leader ? Op::guards[I] : 0U) | ...);
  }

  template <int kWidth>
  __device__ static void compute(const Loaded<kWidth>& in, Stored<kWidth>& out) {
    if constexpr (Op::kPacked && kWidth % 4 == 0) {
      compute_packed(in, out);
    } else {
      compute_each(in, out);
    }
  }

  template <int kWidth>
  __device__ static void compute_packed(const Loaded<kWidth>& in, Stored<kWidth>& out) {
#pragma unroll
    for (int w = 0; w < kWidth / 4; ++w) {
      Tuple<Packed<Out>...> y;
      Op::apply(Packed<In>{word(get<Op::leader[I]>(in.input).value, w)}..., get<O>(y).value...);
      ((word(get<O>(out).value, w) = get<O>(y).value.bits), ...);
    }
  }

  template <int kWidth>
  __device__ static void compute_each(const Loaded<kWidth>& in, Stored<kWidth>& out) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      Tuple<typename Compute<In>::type...> x;  // once a load: the compiler does not see that two conversions are equal
      ((Op::leader[I] == I ? void(get<I>(x).value = widen(get<I>(in.input).value.at[j])) : void()), ...);
      Tuple<typename Compute<Out>::type...> y;
      Op::apply(get<Op::leader[I]>(x).value..., in.holding.at[C][j]..., get<O>(y).value...);
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

  // Stores those elements of a vector for which inside(number) holds.
  template <int kWidth, typename Index, typename Inside>
  __device__ static void store_some(const Parameters<Index>& params, Index i, const Stored<kWidth>& out,
                                    const Inside& inside) {
    (store_some_of(static_cast<Out*>(params.output[O]), i, get<O>(out).value, inside), ...);
  }

  template <typename T, int kWidth, typename Index, typename Inside>
  __device__ static void store_some_of(T* data, Index i, const Vector<T, kWidth>& vector, const Inside& inside) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      if (data != nullptr && inside(j)) data[i + j] = vector.at[j];
    }
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
  begin_early();
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
