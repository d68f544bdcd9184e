// Two stages in one, where the second reads of the first only a value that it centers elements on: every thread centers
// on its own value, and what that changed is put right when results are merged. Threads then wait for each other once
// for each row instead of twice.
#pragma once

#include "scalar.cuh"
#include "tuple.cuh"

namespace onnxopt {

// Whether a stage is one of those below, which run over a thread's elements twice and merge a warp's lanes at once.
template <typename Stage>
constexpr bool kIsMerged = false;

template <int kLanes, typename Combine>
__device__ inline float over_lanes(float x, Combine&& combine) {
#pragma unroll
  for (int mask = kLanes / 2; mask > 0; mask /= 2) x = combine(x, __shfl_xor_sync(0xffffffffu, x, mask));
  return x;
}

template <int kLanes>
__device__ inline float sum_of_lanes(float x) {
  return over_lanes<kLanes>(x, [](float a, float b) { return a + b; });
}

// How many elements, what First and Second found of them.
template <typename FirstPartial, typename SecondPartial>
struct alignas(4) MergedPartial {
  float count;
  FirstPartial first;
  SecondPartial second;
};

// The sum, and the sum of squares of elements less their mean, which is row value kCenter (Chan, Golub, LeVeque:
// Updating formulae and a pairwise algorithm for computing sample variances, 1979).
template <typename FirstStage, typename SecondStage, auto kCenter>
struct Moments {
  using First = FirstStage;
  using Second = SecondStage;
  using Partial = MergedPartial<typename First::Partial, typename Second::Partial>;
  static constexpr unsigned kReads = First::kReads | Second::kReads;

  template <typename Row>
  __device__ static void center(Row& row, const typename First::Partial& first, float count) {
    row.*kCenter = first.p0 * reciprocal_of_normal(count);  // not used where there are no elements
  }

  // The partial results of kLanes lanes, which all get the result.
  template <int kLanes>
  __device__ static void merge_lanes(Partial& p) {
    const float count = sum_of_lanes<kLanes>(p.count);
    const float sum = sum_of_lanes<kLanes>(p.first.p0);
    const float off = p.first.p0 * reciprocal_of_normal(p.count) - sum * reciprocal_of_normal(count);
    p.second.p0 = sum_of_lanes<kLanes>(p.count > 0.0f ? p.second.p0 + p.count * off * off : 0.0f);
    p.count = count;
    p.first.p0 = sum;
  }

  __device__ static Partial identity() { return {0.0f, First::identity(), Second::identity()}; }

  template <typename Row, typename... In>
  __device__ static void finish(Row& row, const Partial& p, In... x) {
    First::finish(row, p.first, x...);
    Second::finish(row, p.second, x...);
  }
};

// The maximum, and the sum of the exponentials of elements less the maximum, which is row value kCenter (Milakov,
// Gimelshein: Online normalizer calculation for softmax, 2018).
template <typename FirstStage, typename SecondStage, auto kCenter>
struct Exponentials {
  using First = FirstStage;
  using Second = SecondStage;
  using Partial = MergedPartial<typename First::Partial, typename Second::Partial>;
  static constexpr unsigned kReads = First::kReads | Second::kReads;

  // Where all is -infinity so far, exponentials are 0 instead of not a number: elsewhere there may be more.
  template <typename Row>
  __device__ static void center(Row& row, const typename First::Partial& first, float) {
    row.*kCenter = first.p0 == -infinity() ? 0.0f : first.p0;
  }

  template <int kLanes>
  __device__ static void merge_lanes(Partial& p) {
    const float most = over_lanes<kLanes>(p.first.p0, [](float a, float b) { return max(a, b); });
    const float own = p.first.p0 == most ? p.second.p0 : p.second.p0 * exp(p.first.p0 - most);
    p.second.p0 = sum_of_lanes<kLanes>(own);
    p.first.p0 = most;
  }

  __device__ static Partial identity() { return {0.0f, First::identity(), Second::identity()}; }

  template <typename Row, typename... In>
  __device__ static void finish(Row& row, const Partial& p, In... x) {
    First::finish(row, p.first, x...);
    Second::finish(row, p.second, x...);
  }
};

template <typename First, typename Second, auto kCenter>
constexpr bool kIsMerged<Moments<First, Second, kCenter>> = true;
template <typename First, typename Second, auto kCenter>
constexpr bool kIsMerged<Exponentials<First, Second, kCenter>> = true;

}  // namespace onnxopt
