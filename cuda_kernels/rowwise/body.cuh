// What every layout of rows does with the elements it has at hand: loading inputs, running a stage, storing outputs.
#pragma once

#include "device/approximate.cuh"
#include "device/early_launch.cuh"
#include "device/load.cuh"
#include "device/scalar.cuh"
#include "device/tuple.cuh"
#include "rowwise/leaves.cuh"

namespace onnxopt {

constexpr int kMostUnpacked = 32;  // elements a thread that are kept in the compute dtype, where they are 16 bits

// A number as a type.
template <unsigned kValue>
struct Constant {
  static constexpr unsigned value = kValue;
};

// The inputs that are as large as the domain, as a mask.
template <char... kModes>
__device__ constexpr unsigned flat_inputs() {
  unsigned mask = 0;
  unsigned bit = 1;
  ((mask |= is_flat(kModes) ? bit : 0u, bit *= 2), ...);
  return mask;
}

// The inputs that may be as large as the domain.
template <char... kModes>
__device__ constexpr unsigned inputs_anywhere() {
  unsigned mask = 0;
  unsigned bit = 1;
  ((mask |= kModes != access_mode::kByColumn && !is_cell(kModes) ? bit : 0u, bit *= 2), ...);
  return mask;
}

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
// 0 <= sum of the terms - low < extent; Forms spells the terms where they were known; kRowInputs marks inputs with one
// element a row, kRowOutputs outputs; Row holds row values; Stages lists the stages; output() and row_output() compute
// what is stored.
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
    ((kModes == access_mode::kDense && I < kAccesses
          ? void(found.at[I] = offset<typename Op::Forms, I, access_mode::kAny>(params, first))
          : void()),
     ...);
    return found;
  }

  template <int kInput, char kMode, typename T, typename Index>
  __device__ static Vector<T, kWidth> load_one(const Parameters<Index>& params, Index i, Index k, Index base) {
    const T* const data = static_cast<const T*>(params.data[kInput]);
    const Input<Index>& input = params.input[kInput];
    if constexpr (kMode == access_mode::kByColumn) {
      return load_vector<T, kWidth>(data + k);
    } else if constexpr (kMode == access_mode::kDense) {
      return load_vector<T, kWidth>(data + static_cast<typename Signed<Index>::type>(base) + k);
    } else if constexpr (kMode == access_mode::kAny && kWidth == 1) {
      return {data[input.flags & kFlat ? i : offset<typename Op::Forms, kInput, kMode>(params, i)]};
    } else {
      return load<typename Op::Forms, kInput, kMode, T, kWidth>(data, params, i);
    }
  }

  static constexpr int kAccesses = sizeof(Op::guards) / sizeof(Op::guards[0]);

  // Whether input kInput is a condition, or lies behind guards.
  static constexpr bool is_guarded(int input) { return input >= kAccesses || Op::guards[input] != 0; }

  // What input kInput is at element i of the domain, k of its row.
  template <int kInput, typename T, char... kModes, typename Index>
  __device__ static Vector<T, kWidth> leaf(const Parameters<Index>& params, Index i, Index k, Index base) {
    if constexpr (is_guarded(kInput)) {
      return RowLeaves<Op, kWidth, kModes...>::template load<kInput, T>(params, i, k, base);
    } else {
      return load_one<kInput, Modes<kModes...>::at[kInput], T>(params, i, k, base);
    }
  }

  // Bytes of a vector of each of the inputs in kMask that vary along the row.
  template <unsigned kMask>
  static constexpr int bytes() {
    return (0 + ... + (((kMask & ~Op::kRowInputs) >> I & 1u) != 0 ? static_cast<int>(sizeof(Vector<In, kWidth>)) : 0));
  }

  // Loads the inputs in kMask that vary along the row: the vector at element i of the domain, k of its row.
  template <unsigned kMask, char... kModes, typename Index>
  __device__ static void load_all(const Parameters<Index>& params, Index i, Index k, Loaded& in,
                                  const Bases<Index>& row_bases = {}) {
    (
        [&] {
          if constexpr (((kMask & ~Op::kRowInputs) >> I & 1u) != 0) {
            get<I>(in).value = leaf<I, In, kModes...>(params, i, k, row_bases.at[I]);
          }
        }(),
        ...);
  }

  // The same for a vector of a ragged row: k elements from the row's first, which lies at `first`. ends_inside,
  // next_inside: whether it is known that the row does not end before this vector does, or the next.
  template <unsigned kMask, char... kModes, typename Index>
  __device__ static void load_ragged(const Parameters<Index>& params, Index first, Index k, Index columns,
                                     bool ends_inside, bool next_inside, Loaded& in, const Bases<Index>& row_bases) {
    (
        [&] {
          if constexpr (((kMask & ~Op::kRowInputs) >> I & 1u) != 0) {
            const In* const data = static_cast<const In*>(params.data[I]);
            const Index i = first + k;  // k may wrap below 0
            const Index left = static_cast<Index>(params.rows) * columns - i;
            if constexpr (is_guarded(I)) {
              get<I>(in).value = leaf<I, In, kModes...>(params, i, k, row_bases.at[I]);
            } else if constexpr (kModes == access_mode::kByColumn) {
              get<I>(in).value = load_across<In, kWidth>(data, k, columns, next_inside);
            } else if constexpr (kModes == access_mode::kDense) {
              const auto base = static_cast<typename Signed<Index>::type>(row_bases.at[I]);
              get<I>(in).value = load_across<In, kWidth>(data + base, k, columns, next_inside);
            } else if constexpr (is_flat(kModes)) {
              get<I>(in).value = load_beginning<In, kWidth>(data + i, ends_inside ? Index{kWidth} : left);
            } else if (ends_inside || left >= kWidth) {
              get<I>(in).value = leaf<I, In, kModes...>(params, i, k, Index{0});
            } else {
#pragma unroll
              for (int j = 0; j < kWidth; ++j) {
                if (static_cast<Index>(j) >= left) continue;
                const auto at = offset<typename Op::Forms, I, access_mode::kAny>(params, static_cast<Index>(i + j));
                get<I>(in).value.at[j] = data[at];
              }
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
            get<I>(in).value = widen(static_cast<const In*>(
                params.data[I])[offset<typename Op::Forms, I, access_mode::kAny>(params, first)]);
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
  static constexpr bool kAlone = sizeof...(Out) == 1;  // the only output is always wanted: its pointer is not null

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

  // Stores the outputs in kMask.
  template <unsigned kMask = ~0u, typename Index>
  __device__ static void store(const Parameters<Index>& params, Index i, const Stored& out) {
    (
        [&] {
          if constexpr (((kMask & ~Op::kRowOutputs) >> O & 1u) != 0) {
            Out* const data = static_cast<Out*>(params.output[O]);
            if (kAlone || data != nullptr) store_vector(data + i, get<O>(out).value);
          }
        }(),
        ...);
  }

  // Stores the elements of a vector that are the row's, which begins k elements before it.
  template <unsigned kMask = ~0u, typename Index>
  __device__ static void store_part(const Parameters<Index>& params, Index i, Index k, Index columns,
                                    const Stored& out) {
    if (k < columns && columns - k >= kWidth) {
      store<kMask>(params, i, out);
      return;
    }
    (
        [&] {
          if constexpr (((kMask & ~Op::kRowOutputs) >> O & 1u) != 0) {
            Out* const data = static_cast<Out*>(params.output[O]);
#pragma unroll
            for (int j = 0; j < kWidth; ++j) {
              const bool wanted = kAlone || data != nullptr;
              if (wanted && k + static_cast<Index>(j) < columns) data[i + j] = get<O>(out).value.at[j];
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

  // Whether everything that is as large as the domain begins where a vector does.
  template <char... kModes, typename Index>
  __device__ static bool flat_are_aligned(const Parameters<Index>& params) {
    return ((kModes != access_mode::kFlat ||
             reinterpret_cast<uint64_t>(params.data[I]) % sizeof(Vector<In, kWidth>) == 0) &&
            ...) &&
           ((reinterpret_cast<uint64_t>(params.output[O]) % sizeof(Vector<Out, kWidth>) == 0) && ...);
  }

  // Whether every operand can be moved in vectors along what `extent` elements of lie side by side.
  template <typename Index>
  __device__ static bool vectors_fit(const Parameters<Index>& params, Index extent) {
    return extent % kWidth == 0 &&
           ((I >= kAccesses || (Op::kRowInputs >> I & 1u) != 0 || (params.input[I].flags & (kFlat | kCell)) != 0) &&
            ...) &&
           ((reinterpret_cast<uint64_t>(params.output[O]) % sizeof(Vector<Out, kWidth>) == 0) && ...);
  }
};

template <typename Op, int kWidth>
using RowBodyOf = RowBody<Op, kWidth, typename Op::Inputs, typename Op::Outputs,
                          typename MakeIndices<Op::Inputs::size>::type, typename MakeIndices<Op::Outputs::size>::type>;

}  // namespace onnxopt
