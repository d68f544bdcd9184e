// What every layout of rows does with the elements it has at hand: loading inputs, running a stage, storing outputs.
#pragma once

#include "pointwise.cuh"
#include "row_abi.h"
#include "shifted.cuh"
#include "tuple.cuh"

namespace onnxopt {

constexpr char kModeColumns = 'K';  // element k of every row is element k of the input
constexpr int kMostUnpacked = 32;   // elements a thread that are kept in the compute dtype, where they are 16 bits
constexpr char kModeDense = 'D';    // a row's elements lie side by side, from where its first one lies

// Keeps the compiler from holding what it computed of a value: 16-bit elements stay packed in their registers.
template <typename T, int kWidth>
__device__ inline void forget(Vector<T, kWidth>& vector) {
  if constexpr (sizeof(vector) % 4 == 0) {
    uint32_t* words = reinterpret_cast<uint32_t*>(&vector);
#pragma unroll
    for (unsigned k = 0; k < sizeof(vector) / 4; ++k) asm volatile("" : "+r"(words[k]));
  }
}

template <typename Op, int kWidth, typename Inputs, typename Outputs, typename I, typename O>
struct RowBody;

// Op is generated: Inputs and Outputs list storage dtypes; guards tells the conditions that must hold where an input is
// read, as bits, and has an entry for each input that is read: those behind them are conditions, which hold where
// 0 <= sum of the terms - low < extent; kRowInputs marks inputs with one element a row, kRowOutputs outputs; Row holds row values; Stages lists the stages; output() and row_output() compute what is stored.
template <typename Op, int kWidth, typename... In, typename... Out, int... I, int... O>
struct RowBody<Op, kWidth, List<In...>, List<Out...>, Indices<I...>, Indices<O...>> {
  using Row = typename Op::Row;
  using Loaded = Tuple<Vector<In, kWidth>...>;
  using RowLoaded = Tuple<typename Compute<In>::type...>;
  template <typename Index>
  using Parameters = RowParams<Index, sizeof...(In), sizeof...(Out)>;

  // Where each input's first element of a row lies, for inputs that are dense in it.
  template <typename Index>
  struct Bases {
    Index at[sizeof...(In)];
  };

  template <char... kModes, typename Index>
  __device__ static Bases<Index> bases(const Parameters<Index>& params, Index first) {
    Bases<Index> found{};
    ((kModes == kModeDense ? void(found.at[I] = offset<AnyTerms, 0, '*'>(params.input[I], first)) : void()), ...);
    return found;
  }

  template <char kMode, typename T, typename Index>
  __device__ static Vector<T, kWidth> load_one(const Input<Index>& input, Index i, Index k, Index base) {
    if constexpr (kMode == kModeColumns) {
      return load_vector<T, kWidth>(static_cast<const T*>(input.data) + k);
    } else if constexpr (kMode == kModeDense) {
      return load_vector<T, kWidth>(static_cast<const T*>(input.data) + base + k);
    } else {
      return load<AnyTerms, 0, kMode, T, kWidth>(input, i);
    }
  }

  static constexpr int kAccesses = sizeof(Op::guards) / sizeof(Op::guards[0]);

  template <int kCondition, typename Index>
  __device__ static bool holds(const Parameters<Index>& params, Index i) {
    const Input<Index>& form = params.input[kAccesses + kCondition];
    return static_cast<Index>(sum_of_terms<0>(form.term, form.terms, i) - static_cast<Index>(Op::low[kCondition])) <
           static_cast<Index>(Op::extent[kCondition]);
  }

  // Whether all of these conditions hold, and whether they are the same for a whole vector.
  template <unsigned kGuards, int kCondition = 0, typename Index>
  __device__ static bool all_hold(const Parameters<Index>& params, Index i) {
    if constexpr ((kGuards >> kCondition) == 0) {
      return true;
    } else if constexpr ((kGuards >> kCondition & 1u) == 0) {
      return all_hold<kGuards, kCondition + 1>(params, i);
    } else {
      return holds<kCondition>(params, i) && all_hold<kGuards, kCondition + 1>(params, i);
    }
  }

  template <unsigned kGuards, typename Index>
  __device__ static bool are_uniform(const Parameters<Index>& params) {
    return ((I < kAccesses || (kGuards >> (I - kAccesses) & 1u) == 0 || (params.input[I].flags & kCell) != 0) && ...);
  }

  // Whether a condition holds, for every element of the vector at element i.
  template <int kCondition, typename T, typename Index>
  __device__ static Vector<T, kWidth> evaluate(const Parameters<Index>& params, Index i) {
    if (params.input[kAccesses + kCondition].flags & kCell) return splat<T, kWidth>(holds<kCondition>(params, i));
    Vector<T, kWidth> all;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) all.at[j] = holds<kCondition>(params, static_cast<Index>(i + j));
    return all;
  }

  // Where a guard does not hold nothing is read.
  template <int kInput, typename T, typename Index>
  __device__ static Vector<T, kWidth> load_guarded(const Parameters<Index>& params, Index i) {
    constexpr unsigned kGuards = Op::guards[kInput];
    const Input<Index>& input = params.input[kInput];
    Vector<T, kWidth> loaded = splat<T, kWidth>(T{});
    if (are_uniform<kGuards>(params)) {
      if (all_hold<kGuards>(params, i)) loaded = load<AnyTerms, 0, '*', T, kWidth>(input, i);
      return loaded;
    }
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const Index at = static_cast<Index>(i + j);
      if (all_hold<kGuards>(params, at)) {
        loaded.at[j] = static_cast<const T*>(input.data)[offset<AnyTerms, 0, '*'>(input, at)];
      }
    }
    return loaded;
  }

  // What input kInput is at element i of the domain, k of its row.
  template <int kInput, char kMode, typename T, typename Index>
  __device__ static Vector<T, kWidth> leaf(const Parameters<Index>& params, Index i, Index k, Index base) {
    if constexpr (kInput >= kAccesses) {
      return evaluate<kInput - kAccesses, T>(params, i);
    } else if constexpr (Op::guards[kInput] != 0) {
      return load_guarded<kInput, T>(params, i);
    } else {
      return load_one<kMode, T>(params.input[kInput], i, k, base);
    }
  }

  // Loads the inputs in kMask that vary along the row: the vector at element i of the domain, k of its row.
  template <unsigned kMask, char... kModes, typename Index>
  __device__ static void load_all(const Parameters<Index>& params, Index i, Index k, Loaded& in,
                                  const Bases<Index>& row_bases = {}) {
    (
        [&] {
          if constexpr (((kMask & ~Op::kRowInputs) >> I & 1u) != 0) {
            get<I>(in).value = leaf<I, kModes, In>(params, i, k, row_bases.at[I]);
          }
        }(),
        ...);
  }

  // The same for a vector of a ragged row: k elements from the row's first, which lies at `first`.
  template <unsigned kMask, char... kModes, typename Index>
  __device__ static void load_ragged(const Parameters<Index>& params, Index first, Index k, Index columns, Loaded& in,
                                     const Bases<Index>& row_bases) {
    (
        [&] {
          if constexpr (((kMask & ~Op::kRowInputs) >> I & 1u) != 0) {
            const In* const data = static_cast<const In*>(params.input[I].data);
            if constexpr (kModes == kModeColumns) {
              get<I>(in).value = load_across<In, kWidth>(data, k, columns);
            } else if constexpr (kModes == kModeDense) {
              get<I>(in).value = load_across<In, kWidth>(data + row_bases.at[I], k, columns);
            } else if constexpr (is_flat(kModes)) {
              const Index i = first + k;  // k may wrap below 0
              get<I>(in).value = load_beginning<In, kWidth>(data + i, static_cast<Index>(params.rows) * columns - i);
            } else {
              get<I>(in).value = leaf<I, kModes, In>(params, static_cast<Index>(first + k), k, Index{0});
            }
          }
        }(),
        ...);
  }

  // Forgets what was computed of the inputs in kMask that are stored in 16 bits.
  template <unsigned kMask>
  __device__ static void forget_all(Loaded& in) {
    (
        [&] {
          if constexpr (((kMask & ~Op::kRowInputs) >> I & 1u) != 0 && sizeof(In) == 2) forget(get<I>(in).value);
        }(),
        ...);
  }

  // Bytes that a thread loads for one vector of every input.
  static constexpr unsigned kBytes =
      ((Op::kRowInputs >> I & 1u ? 0u : unsigned(sizeof(Vector<In, kWidth>))) + ... + 0u);

  template <typename Index>
  __device__ static void load_row(const Parameters<Index>& params, Index first, RowLoaded& in) {
    (
        [&] {
          if constexpr ((Op::kRowInputs >> I & 1u) != 0) {
            const Input<Index>& input = params.input[I];
            get<I>(in).value = widen(static_cast<const In*>(input.data)[offset<AnyTerms, 0, '*'>(input, first)]);
          }
        }(),
        ...);
  }

  template <int kInput, typename T>
  __device__ static typename Compute<T>::type value(const Loaded& in, const RowLoaded& row_in, int j) {
    if constexpr ((Op::kRowInputs >> kInput & 1u) != 0) {
      return get<kInput>(row_in).value;
    } else {
      return widen(get<kInput>(in).value.at[j]);
    }
  }

  template <typename Stage>
  __device__ static void add(typename Stage::Partial& partial, const Row& row, const Loaded& in,
                             const RowLoaded& row_in, int j) {
    Stage::accumulate(partial, row, value<I, In>(in, row_in, j)...);
  }

  template <typename Stage>
  __device__ static void finish(Row& row, const typename Stage::Partial& partial, const RowLoaded& row_in) {
    Stage::finish(row, partial, get<I>(row_in).value...);
  }

  using Stored = Tuple<Vector<Out, kWidth>...>;

  __device__ static void compute(const Row& row, const Loaded& in, const RowLoaded& row_in, int j, Stored& out) {
    Tuple<typename Compute<Out>::type...> y;
    Op::output(row, value<I, In>(in, row_in, j)..., get<O>(y).value...);
    (
        [&] {
          if constexpr ((Op::kRowOutputs >> O & 1u) == 0) {
            get<O>(out).value.at[j] = Narrow<Out>::from(get<O>(y).value);
          }
        }(),
        ...);
  }

  template <typename Index>
  __device__ static void store(const Parameters<Index>& params, Index i, const Stored& out) {
    (
        [&] {
          if constexpr ((Op::kRowOutputs >> O & 1u) == 0) {
            Out* const data = static_cast<Out*>(params.output[O]);
            if (data != nullptr) store_vector(data + i, get<O>(out).value);
          }
        }(),
        ...);
  }

  // Stores the elements of a vector that are the row's, which begins k elements before it.
  template <typename Index>
  __device__ static void store_part(const Parameters<Index>& params, Index i, Index k, Index columns,
                                    const Stored& out) {
    if (k < columns && columns - k >= kWidth) {
      store(params, i, out);
      return;
    }
    (
        [&] {
          if constexpr ((Op::kRowOutputs >> O & 1u) == 0) {
            Out* const data = static_cast<Out*>(params.output[O]);
#pragma unroll
            for (int j = 0; j < kWidth; ++j) {
              if (data != nullptr && k + static_cast<Index>(j) < columns) data[i + j] = get<O>(out).value.at[j];
            }
          }
        }(),
        ...);
  }

  template <typename Index>
  __device__ static void store_row(const Parameters<Index>& params, Index at, const Row& row, const RowLoaded& row_in) {
    Tuple<typename Compute<Out>::type...> y;
    Op::row_output(row, get<I>(row_in).value..., get<O>(y).value...);
    (
        [&] {
          if constexpr ((Op::kRowOutputs >> O & 1u) != 0) {
            Out* const data = static_cast<Out*>(params.output[O]);
            if (data != nullptr) data[at] = Narrow<Out>::from(get<O>(y).value);
          }
        }(),
        ...);
  }

  // Whether how an input is loaded does not depend on where its vectors lie.
  template <int kInput>
  static constexpr bool fits_itself() {
    if constexpr (kInput >= kAccesses) {
      return true;
    } else {
      return (Op::kRowInputs >> kInput & 1u) != 0 || Op::guards[kInput] != 0;
    }
  }

  // Whether every operand can be moved in vectors along what `extent` elements of lie side by side.
  template <typename Index>
  __device__ static bool vectors_fit(const Parameters<Index>& params, Index extent) {
    return extent % kWidth == 0 &&
           ((fits_itself<I>() || (params.input[I].flags & (kFlat | kCell)) != 0) && ...) &&
           ((reinterpret_cast<uint64_t>(params.output[O]) % sizeof(Vector<Out, kWidth>) == 0) && ...);
  }
};

template <typename Op, int kWidth>
using RowBodyOf = RowBody<Op, kWidth, typename Op::Inputs, typename Op::Outputs,
                          typename MakeIndices<Op::Inputs::size>::type, typename MakeIndices<Op::Outputs::size>::type>;

}  // namespace onnxopt
