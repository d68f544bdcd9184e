// Launches between products that are not ours: a library multiplies the rows of one expert after the other, so rows lie
// in the order of the experts that `route` has found.
//
//   route  ->  sort  ->  products with A[e]  ->  f  ->  products with B[e]  ->  join
#pragma once

#include "experts/experts.cuh"

namespace onnxopt {

template <typename Op>
struct SortedExperts {
  using T = typename Op::Stored;
  static constexpr int kVector = 16 / sizeof(T);
  using Rows = Experts<Op>;

  __device__ static int expert_of_place(const ExpertsParams& p, int place) {
    return expert_of<Op::kExperts>(p, p.order[place]);
  }

  // A block copies one row of x to its place in the order, and notes which place that is.
  template <int kThreads>
  __device__ static void run_sort(const ExpertsParams& p) {
    begin_early();
    const int place = static_cast<int>(blockIdx.x), row = p.order[place];
    if (threadIdx.x == 0) p.places[row] = place;
    const T* const from = static_cast<const T*>(p.x) + static_cast<int64_t>(row / Op::kChosen) * Op::kColumns;
    T* const to = static_cast<T*>(p.sorted) + static_cast<int64_t>(place) * Op::kColumns;
    for (int k = static_cast<int>(threadIdx.x) * kVector; k < Op::kColumns; k += kThreads * kVector) {
      store_vector(to + k, load_vector<T, kVector>(from + k));
    }
  }

  // f: a thread has a vector of a row.
  template <int kThreads>
  __device__ static void run_activate(const ExpertsParams& p) {
    constexpr int kOfRow = Op::kHidden / kVector;
    begin_early();
    const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    const int64_t place = at / kOfRow;
    const int column = static_cast<int>(at % kOfRow) * kVector;
    if (place >= p.rows) return;
    const int expert = Op::kFirstBiased ? expert_of_place(p, static_cast<int>(place)) : 0;
    const T* const row = static_cast<const T*>(p.products) + place * Rows::template width<false>();
    const auto biased = [&](T sum, int of) { return widen(sum) + Rows::template bias<false>(p, expert, of); };
    Vector<T, kVector> result;
    if constexpr (Op::kInterleaved) {
      const auto pairs = load_vector<T, kVector>(row + 2 * column);
      const auto rest = load_vector<T, kVector>(row + 2 * column + kVector);
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        const int pair = 2 * k % kVector, of = 2 * (column + k);
        const auto& from = k < kVector / 2 ? pairs : rest;
        result.at[k] = Narrow<T>::from(Op::apply(biased(from.at[pair], of), biased(from.at[pair + 1], of + 1)));
      }
    } else if constexpr (Op::kGated) {
      const auto low = load_vector<T, kVector>(row + column);
      const auto high = load_vector<T, kVector>(row + Op::kHidden + column);
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        const int of = column + k;
        result.at[k] = Narrow<T>::from(Op::apply(biased(low.at[k], of), biased(high.at[k], Op::kHidden + of)));
      }
    } else {
      const auto sums = load_vector<T, kVector>(row + column);
#pragma unroll
      for (int k = 0; k < kVector; ++k) result.at[k] = Narrow<T>::from(Op::apply(biased(sums.at[k], column + k)));
    }
    store_at_once(static_cast<T*>(p.between) + place * Op::kHidden + column, result);
  }

  // A thread adds a vector of a token's rows, choice by choice. They lie where x was sorted.
  template <int kThreads>
  __device__ static void run_join(const ExpertsParams& p) {
    constexpr int kOfRow = Op::kColumns / kVector;
    begin_early();
    const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    const int64_t token = at / kOfRow;
    const int column = static_cast<int>(at % kOfRow) * kVector;
    if (token * Op::kChosen >= p.rows) return;
    float sum[kVector] = {};
#pragma unroll
    for (int c = 0; c < Op::kChosen; ++c) {
      const int row = static_cast<int>(token) * Op::kChosen + c;
      const float factor = widen(static_cast<const typename Op::Factor*>(p.factors)[row]);
      const int64_t place = p.places[row];
      const auto part = load_vector<T, kVector>(static_cast<const T*>(p.sorted) + place * Op::kColumns + column);
      const int expert = Op::kSecondBiased ? expert_of<Op::kExperts>(p, row) : 0;
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        sum[k] = ::fmaf(widen(part.at[k]) + Rows::template bias<true>(p, expert, column + k), factor, sum[k]);
      }
    }
    Vector<T, kVector> y;
#pragma unroll
    for (int k = 0; k < kVector; ++k) y.at[k] = Narrow<T>::from(sum[k]);
    store_at_once(static_cast<T*>(p.y) + token * Op::kColumns + column, y);
  }
};

}  // namespace onnxopt
