// The bias of an attention. Scores begin as it over their scale, and products are added: a sum later would take as many
// registers again.
//
// One that all queries share, as a mask of padding is, comes to shared memory with its tile of keys. Of any other,
// lanes load runs of neighbours while the tile before is worked on.
#pragma once

#include "device/copy_async.cuh"
#include "device/vector.cuh"
#include "flash_attention/softmax.cuh"

namespace onnxopt {

// Op: as of FlashAttention. Tile: see tile.cuh.
template <typename Op, typename Tile>
struct FlashBias {
  using Params = FlashAttentionParams;
  using Place = FlashPlace;
  using T = typename Op::Stored;
  using Softmax = FlashSoftmax<Op, Tile>;
  using Scores = typename Softmax::Scores;

  static constexpr int kTileBytes = Op::kBiased ? sizeof(T) * Tile::kKeys : 0;  // of one that all queries share
  static constexpr int kRun = Tile::kRun;
  static constexpr int kRuns = Tile::kKeys / (4 * kRun);  // of a lane and a query
  static constexpr float kLeast = -1e37f;                 // of finite ones: rows that they hide all keys of have a mean

  struct Runs {  // of a lane, of queries lane / 4 and that plus 8
    Vector<T, kRun> at[2][kRuns];
  };

  // Whether elements can be loaded kTogether at once, in every row.
  template <int kTogether>
  __device__ static bool is_aligned(const Params& p) {
    const uint64_t odd = reinterpret_cast<uint64_t>(p.bias) / sizeof(T) | p.bias_batch | p.bias_head | p.bias_query;
    return odd % kTogether == 0;
  }

  __device__ static bool is_copied(const Params& p) { return p.bias_query == 0 && is_aligned<2>(p); }

  // Asks for that of a tile of keys from `first` on, by kBy threads of which this one is number `thread`. Later ones
  // ask for nothing.
  template <int kBy>
  __device__ static void fetch(const Params& p, const Place& at, unsigned first, unsigned char* to, unsigned thread) {
    if constexpr (Op::kBiased) {
      constexpr int kPair = 2 * sizeof(T);
      if (!is_copied(p) || thread >= kBy) return;
      const T* const of_head = Softmax::bias_of(p, at);
      for (unsigned i = thread; i < Tile::kKeys / 2; i += kBy) {
        const int left = static_cast<int>(p.keys) - static_cast<int>(first + 2 * i);
        const int bytes = sizeof(T) * max(min(left, 2), 0);
        copy_part_async<kPair>(to + kPair * i, bytes > 0 ? of_head + first + 2 * i : of_head, bytes);
      }
    }
  }

  // What is copied becomes scores, times `factor`.
  __device__ static void take(const unsigned char* copied, float factor, Scores& s) {
    const T* const of_lane = reinterpret_cast<const T*>(copied) + threadIdx.x % 4 * kRun;
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      const Vector<T, kRun> run = load_vector<T, kRun>(of_lane + i * 4 * kRun);
#pragma unroll
      for (int k = 0; k < kRun; ++k) {
        float (&of)[4] = s.at[i * (kRun / 2) + k / 2];
        of[k % 2] = of[2 + k % 2] = scaled(widen(run.at[k]), factor);
      }
    }
  }

  // Loads that of the lane's queries and a tile of keys from `first` on. Keys that there are none of have any;
  // Softmax::hide comes later.
  __device__ static void load(const Params& p, const Place& at, unsigned first, Runs& runs) {
    const bool in_runs = is_aligned<kRun>(p) && p.keys % kRun == 0;
    if (in_runs) {
      load_rows<kRun>(p, at, first, runs);
    } else if (is_aligned<2>(p) && p.keys % 2 == 0) {
      load_rows<2>(p, at, first, runs);
    } else {
      load_rows<1>(p, at, first, runs);
    }
  }

  template <int kTogether>
  __device__ static void load_rows(const Params& p, const Place& at, unsigned first, Runs& runs) {
    const T* const of_head = Softmax::bias_of(p, at);
    const unsigned query = Softmax::query_of_lane(at);
    const unsigned key = first + threadIdx.x % 4 * kRun;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const T* const row = of_head + static_cast<uint64_t>(min(query + 8 * half, p.queries - 1)) * p.bias_query;
#pragma unroll
      for (int i = 0; i < kRuns; ++i) {
#pragma unroll
        for (int k = 0; k < kRun; k += kTogether) {
          const unsigned from = min(key + i * 4 * kRun + k, p.keys - kTogether);
          const Vector<T, kTogether> part = load_vector<T, kTogether>(row + from);
#pragma unroll
          for (int e = 0; e < kTogether; ++e) runs.at[half][i].at[k + e] = part.at[e];
        }
      }
    }
  }

  // What is loaded becomes scores, times `factor`.
  __device__ static void take(const Runs& runs, float factor, Scores& s) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < kRuns; ++i) {
#pragma unroll
        for (int k = 0; k < kRun; ++k) {
          s.at[i * (kRun / 2) + k / 2][2 * half + k % 2] = scaled(widen(runs.at[half][i].at[k]), factor);
        }
      }
    }
  }

  // A cap comes between scale and bias: there, scores do not begin as the bias, which is times log2(e).
  __device__ static float factor(const Params& p) {
    if constexpr (Softmax::kNatural) return 1.0f;
    return Op::kCapped ? kFlashLog2E : kFlashLog2E / p.scale;
  }

  __device__ static float scaled(float bias, float factor) {
    const float x = bias * factor;
    return kReachesFar<T> && x < kLeast && bias > Softmax::nothing() ? kLeast : x;
  }
};

}  // namespace onnxopt
