// Loading a vector of an input: how its elements lie over the domain decides what is loaded, and guards whether.
#pragma once

#include "device/index.cuh"
#include "device/shifted.cuh"
#include "device/tuple.cuh"
#include "device/vector.cuh"

namespace onnxopt {

template <typename Op, int kAccess, char kMode, typename T, int kWidth, typename P, typename Index>
__device__ inline Vector<T, kWidth> gather(const T* data, const P& params, Index i) {
  Vector<T, kWidth> gathered;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    gathered.at[j] = data[offset<Op, kAccess, kMode>(params, static_cast<Index>(i + j))];
  }
  return gathered;
}

// The same where a run or cell has at least kWidth elements, so that a vector meets one end at most: two offsets tell
// all.
template <typename Op, int kAccess, char kMode, typename T, int kWidth, typename P, typename Index>
__device__ inline Vector<T, kWidth> gather_at_ends(const T* data, const P& params, Index i) {
  using SignedIndex = typename Signed<Index>::type;
  constexpr int kStep = known_step<Op, kAccess, kMode>();
  const Stretch<Index> here = stretch<Op, kAccess, kMode>(params, i);
  const auto first = offset<Op, kAccess, kMode>(params, i);
  const auto last = offset<Op, kAccess, kMode>(params, static_cast<Index>(i + kWidth - 1));
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
template <typename Op, int kAccess, char kMode, typename T, int kWidth, typename P, typename Index>
__device__ inline Vector<T, kWidth> gather_in_runs(const T* data, const P& params, Index i) {
  if constexpr (known_step<Op, kAccess, kMode>() == 1 && sizeof(T) < 4 && kWidth * sizeof(T) >= 4) {
    Unaligned<T, kWidth> read;
    if (stretch<Op, kAccess, kMode>(params, i).left >= read.kReach) {
      read.load(data + offset<Op, kAccess, kMode>(params, i), read.kReach);
    } else {
      read.hold(gather_at_ends<Op, kAccess, kMode, T, kWidth>(data, params, i));
    }
    Vector<T, kWidth> gathered;
#pragma unroll
    for (int w = 0; w < read.kWords; ++w) word(gathered, w) = read.part(w);
    return gathered;
  } else {
    return gather_at_ends<Op, kAccess, kMode, T, kWidth>(data, params, i);
  }
}

// Neighbours in the domain take turns among kRuns runs: element j is the (j / kRuns)th of run j % kRuns.
template <typename Op, int kAccess, typename T, int kWidth, typename P, typename Index>
__device__ inline Vector<T, kWidth> load_interleaved(const T* data, const P& params, Index i) {
  constexpr int kRuns = Op::runs[kAccess] > 0 ? Op::runs[kAccess] : 1;
  static_assert(kWidth % kRuns == 0, "a vector takes as much from every run");
  Vector<T, kWidth / kRuns> run[kRuns];
#pragma unroll
  for (int r = 0; r < kRuns; ++r) {
    run[r] = load_vector<T, kWidth / kRuns>(
        data + offset<Op, kAccess, access_mode::kRunAny>(params, static_cast<Index>(i + r)));
  }
  Vector<T, kWidth> loaded;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) loaded.at[j] = run[j % kRuns].at[j / kRuns];
  return loaded;
}

template <typename Op, int kAccess, char kMode, typename T, int kWidth, typename P, typename Index>
__device__ inline Vector<T, kWidth> load(const T* data, const P& params, Index i) {
  if constexpr (is_scalar(kMode)) {
    return splat<T, kWidth>(data[0]);
  } else if constexpr (kWidth == 1) {
    return {data[offset<Op, kAccess, kMode>(params, i)]};
  } else if constexpr (is_flat(kMode)) {
    return load_vector<T, kWidth>(data + i);
  } else if constexpr (is_neighbours(kMode) && is_row(kMode)) {
    return load_kept<T, kWidth>(data + offset<Op, kAccess, kMode>(params, i));
  } else if constexpr (is_neighbours(kMode)) {
    return load_vector<T, kWidth>(data + offset<Op, kAccess, kMode>(params, i));
  } else if constexpr (is_interleaved(kMode)) {
    return load_interleaved<Op, kAccess, T, kWidth>(data, params, i);
  } else if constexpr (is_cell(kMode)) {
    return splat<T, kWidth>(data[offset<Op, kAccess, kMode>(params, i)]);
  } else if constexpr (is_any(kMode)) {
    const Input<Index>& input = params.input[kAccess];
    if (input.flags & kFlat) return load_vector<T, kWidth>(data + i);
    if (!(input.flags & kCell)) return gather<Op, kAccess, kMode, T, kWidth>(data, params, i);
    const T* cell = data + offset<Op, kAccess, kMode>(params, i);
    return input.flags & kInner ? load_vector<T, kWidth>(cell) : splat<T, kWidth>(*cell);
  } else {
    return gather_in_runs<Op, kAccess, kMode, T, kWidth>(data, params, i);
  }
}

template <int kCount, int kWidth>
struct Predicates {
  bool at[kCount > 0 ? kCount : 1][kWidth];

  // Whether those of these conditions hold for element j.
  __device__ bool all(unsigned guards, int j) const {
    bool all = true;
#pragma unroll
    for (int c = 0; c < kCount; ++c) all = all && (!(guards >> c & 1U) || at[c][j]);
    return all;
  }
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
  if constexpr (Op::guards[kAccess] == 0) {
    return load<Op, kAccess, kMode, T, kWidth>(static_cast<const T*>(params.data[kAccess]), params, i);
  } else {
    Vector<T, kWidth> loaded = splat<T, kWidth>(T{});
    constexpr int kLoads = kUniform ? 1 : kWidth;
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const auto all_of = [&](unsigned guards) { return holding.all(guards, j); };
      const Source<T> source = source_of<Op, kAccess, T>(params, all_of);
      if constexpr (kUniform) {
        if (source.inside) loaded = load<Op, kAccess, kMode, T, kWidth>(source.data, params, i);
      } else if (source.inside) {
        loaded.at[j] = source.data[offset<Op, kAccess, kMode>(params, static_cast<Index>(i + j))];
      }
    }
    return loaded;
  }
}

// The leaves that the index of an access depends on, 0 where it looks nothing up. An Op without `lookup` has no such
// access.
template <typename Op>
constexpr auto leaves_of_index(int access, int /*preferred*/) -> decltype(Op::lookup[access] + 0) {
  return Op::lookup[access];
}

template <typename Op>
constexpr unsigned leaves_of_index(int /*access*/, long /*else*/) {
  return 0;
}

template <typename Op>
constexpr bool looks_up(int access) {
  return leaves_of_index<Op>(access, 0) != 0;
}

// What an index leads to along the dim that an access looks up, as Gather defines it: below 0 it counts from the end.
struct Row {
  int64_t offset;
  bool inside;
};

template <int kAccess, typename P>
__device__ inline Row row_of(const P& params, int64_t index) {
  const auto& dim = params.input[kAccess].term[kMaxTerms - 1];
  const int64_t size = static_cast<int64_t>(dim.mod.divisor);
  const int64_t at = index < 0 ? index + size : index;
  // Outside, the product may wrap around.
  return {static_cast<int64_t>(static_cast<uint64_t>(at) * dim.stride), at >= 0 && at < size};
}

// Loads what an access looks up; 0 where an index lies outside of the dim. index(j): of element j of the vector.
// kAlike: it is the same for all, as the guards are.
template <typename Op, int kAccess, char kMode, bool kAlike, typename T, int kWidth, int kCount, typename P,
          typename Index, typename IndexOf>
__device__ inline Vector<T, kWidth> load_looked_up(const P& params, const Predicates<kCount, kWidth>& holding, Index i,
                                                   const IndexOf& index) {
  const T* const data = static_cast<const T*>(params.data[kAccess]);
  Vector<T, kWidth> loaded = splat<T, kWidth>(T{});
  if constexpr (kAlike) {
    const Row row = row_of<kAccess>(params, index(0));
    if (row.inside && holding.all(Op::guards[kAccess], 0)) {
      loaded = load<Op, kAccess, kMode, T, kWidth>(data + row.offset, params, i);
    }
  } else {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const Row row = row_of<kAccess>(params, index(j));
      if (!row.inside || !holding.all(Op::guards[kAccess], j)) continue;
      loaded.at[j] = data[row.offset + offset<Op, kAccess, kMode>(params, static_cast<Index>(i + j))];
    }
  }
  return loaded;
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
  // Whether all of these leaves are the same for a whole vector.
  static constexpr bool alike(unsigned leaves) {
    for (int k = 0; k < static_cast<int>(sizeof...(kModes)); ++k) {
      if ((leaves >> k & 1U) && !(is_scalar(at[k]) || is_cell(at[k]) || is_uniform(at[k]))) return false;
    }
    return true;
  }
  static constexpr bool has_any = (is_any(kModes) || ...);
};

}  // namespace onnxopt
