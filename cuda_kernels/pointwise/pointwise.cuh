// One pass over the domain: load every input once, run the program on each element, store every output once.
//
// A block owns kThreads * kUnroll vectors of kWidth neighbouring elements. A thread loads all of its vectors before it
// computes on the first, so that kUnroll * inputs loads are in flight; neighbouring threads touch neighbouring vectors.
// The last count % kWidth elements, and general variants whose outputs no vector fits, go element by element.
#pragma once

#include "device/approximate.cuh"
#include "device/early_launch.cuh"
#include "device/load.cuh"
#include "device/packed.cuh"
#include "device/scalar.cuh"
#include "pointwise/abi.h"

namespace onnxopt {

template <typename Op, typename Inputs, typename Outputs, typename I, typename O, typename C>
struct Body;

// Op is generated: its Inputs and Outputs list storage dtypes, kConditions and guards (of each input) tell of
// conditions, terms or at (of each input, then each condition) of the index, and apply(x0, x1, ..., c0, c1, ..., y0&,
// ...) is the program. Where inputs are looked up, lookup has the leaves of each one's index as bits, and
// index<kInput>(x0, x1, ..., c0, c1, ...) is that index. kPacked: apply is there for Packed operands too.
template <typename Op, typename... In, typename... Out, int... I, int... O, int... C>
struct Body<Op, List<In...>, List<Out...>, Indices<I...>, Indices<O...>, Indices<C...>> {
  static constexpr int kInputs = sizeof...(In);
  static constexpr int kConditions = sizeof...(C);
  static constexpr bool kAlone = sizeof...(Out) == 1;  // the only output is always wanted: its pointer is not null
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
    (evaluate_condition<kWidth, M::at[kInputs + C], C>(params, i, in.holding.at[C]), ...);
  }

  template <int kWidth, char kMode, int kCondition, typename Index>
  __device__ static void evaluate_condition(const Parameters<Index>& params, Index i, bool (&at)[kWidth]) {
    if constexpr (is_uniform(kMode)) {
      const bool all = holds<Op, kCondition>(params, i);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) at[j] = all;
    } else {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) at[j] = holds<Op, kCondition>(params, static_cast<Index>(i + j));
    }
  }

  template <int kWidth, typename M, typename Index>
  __device__ static void load_all(const Parameters<Index>& params, Index i, Loaded<kWidth>& in) {
    load_direct<kWidth, M>(params, i, in);
    look_up<kWidth, M>(params, i, in);
  }

  // All but what is looked up.
  template <int kWidth, typename M, typename Index>
  __device__ static void load_direct(const Parameters<Index>& params, Index i, Loaded<kWidth>& in) {
    evaluate_conditions<kWidth, M>(params, i, in);
    (load_one<I, In, kWidth, M>(params, i, in), ...);
  }

  static constexpr bool kLooksUp = (looks_up<Op>(I) || ...);

  template <int kWidth, typename M, typename Index>
  __device__ static void look_up(const Parameters<Index>& params, Index i, Loaded<kWidth>& in) {
    (look_up_one<I, In, kWidth, M>(params, i, in), ...);
  }

  template <int kInput, typename T, int kWidth, typename M, typename Index>
  __device__ static void look_up_one(const Parameters<Index>& params, Index i, Loaded<kWidth>& in) {
    if constexpr (looks_up<Op>(kInput)) {
      constexpr unsigned kLeaves = leaves_of_index<Op>(kInput, 0);
      constexpr bool kAlike = kWidth == 1 || (M::alike(kLeaves) && M::uniform(Op::guards[kInput], kInputs));
      const auto index = [&](int j) {
        return Op::template index<kInput>(widen(get<Op::leader[I]>(in.input).value.at[j])..., in.holding.at[C][j]...);
      };
      get<kInput>(in.input).value =
          load_looked_up<Op, kInput, M::at[kInput], kAlike, T, kWidth>(params, in.holding, i, index);
    }
  }

  // Inputs that go through shared memory are already there, and an access that does not lead is what its leader is.
  template <int kInput, typename T, int kWidth, typename M, typename Index>
  __device__ static void load_one(const Parameters<Index>& params, Index i, Loaded<kWidth>& in) {
    if constexpr (looks_up<Op>(kInput)) {
      get<kInput>(in.input).value = splat<T, kWidth>(T{});
    } else if constexpr (!is_transposed(M::at[kInput]) && Op::leader[kInput] == kInput) {
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
    } else if constexpr (kWidth % 4 == 0 && (NarrowFour<Out>::kWord || ...)) {
      compute_fours(in, out);
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
      Results y;
      apply_to(in, j, y);
      ((get<O>(out).value.at[j] = Narrow<Out>::from(get<O>(y).value)), ...);
    }
  }

  template <int kWidth>
  __device__ static void compute_fours(const Loaded<kWidth>& in, Stored<kWidth>& out) {
#pragma unroll
    for (int w = 0; w < kWidth / 4; ++w) {
      Results y[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) apply_to(in, 4 * w + j, y[j]);
      (narrow_four(get<O>(out).value, w, get<O>(y[0]).value, get<O>(y[1]).value, get<O>(y[2]).value,
                   get<O>(y[3]).value),
       ...);
    }
  }

  template <typename T, int kWidth, typename V>
  __device__ static void narrow_four(Vector<T, kWidth>& to, int w, V y0, V y1, V y2, V y3) {
    if constexpr (NarrowFour<T>::kWord) {
      word(to, w) = NarrowFour<T>::from(y0, y1, y2, y3);
    } else {
      to.at[4 * w] = Narrow<T>::from(y0);
      to.at[4 * w + 1] = Narrow<T>::from(y1);
      to.at[4 * w + 2] = Narrow<T>::from(y2);
      to.at[4 * w + 3] = Narrow<T>::from(y3);
    }
  }

  using Results = Tuple<typename Compute<Out>::type...>;

  // The program on element j of vectors.
  template <int kWidth>
  __device__ static void apply_to(const Loaded<kWidth>& in, int j, Results& y) {
    Tuple<typename Compute<In>::type...> x;  // once a load: the compiler does not see that two conversions are equal
    ((Op::leader[I] == I ? void(get<I>(x).value = widen(get<I>(in.input).value.at[j])) : void()), ...);
    Op::apply(get<Op::leader[I]>(x).value..., in.holding.at[C][j]..., get<O>(y).value...);
  }

  template <int kWidth, typename Index>
  __device__ static void store_all(const Parameters<Index>& params, Index i, const Stored<kWidth>& out) {
    (store(static_cast<Out*>(params.output[O]), i, get<O>(out).value), ...);
  }

  template <typename T, int kWidth, typename Index>
  __device__ static void store(T* data, Index i, const Vector<T, kWidth>& vector) {
    if (kAlone || data != nullptr) store_vector(data + i, vector);
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
    if (i < whole) B::template load_direct<kWidth, M>(params, i, in[u]);
  }
  if constexpr (B::kLooksUp) {  // all indices are on their way by now
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const Index i = first + u * kStep;
      if (i < whole) B::template look_up<kWidth, M>(params, i, in[u]);
    }
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
