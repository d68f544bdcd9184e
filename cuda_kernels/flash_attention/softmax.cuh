// From scores to weights: bias, cap and local attention, and the softmax of rows whose keys come some at a time.
#pragma once

#include "device/approximate.cuh"
#include "device/ptx.cuh"
#include "device/scalar.cuh"
#include "device/shuffle.cuh"
#include "device/vector.cuh"
#include "flash_attention/operands.cuh"
#include "flash_attention/products.cuh"

namespace onnxopt {

constexpr float kFlashLog2E = 1.4426950408889634f;

// Whether finite numbers over a scale may be beyond float32.
template <typename T>
constexpr bool kReachesFar = false;
template <>
constexpr bool kReachesFar<bfloat16> = true;
template <>
constexpr bool kReachesFar<float> = true;

// Op: as of FlashAttention.
template <typename Op, typename Tile>
struct FlashSoftmax {
  using Params = FlashAttentionParams;
  using T = typename Op::Stored;
  using Place = FlashPlace;
  using Scores = FlashScores<Tile>;
  static constexpr int kKeyTiles = Tile::kKeyTiles;
  // Chains of additions that weights are summed in (two_sums_from of onnxopt/costs/data/flash_attention.json). A second
  // one changes how many registers a thread takes, and so how many blocks a multiprocessor holds.
  static constexpr int kSums = Tile::kKeys >= (Op::kBiased ? 64 : 128) ? 2 : 1;

  // What a bias hides scores this or less, and kLow where rows weigh it alike within their window. In float32 only a
  // bias near the lowest number hides as the window does: beside a higher one, keys outside weigh nothing.
  static constexpr float kHidden = sizeof(T) == 4 ? -1e25f : (Op::kBegins || Op::kEnds ? -5e3f : -2e4f) * kFlashLog2E;
  static constexpr float kLow = 1.0625f * kHidden;
  // Whether scores are rounded as the model rounds them: products, scaled, and a bias that is added to them. Beside a
  // bias of -1e4, that decides what the keys weigh that it hides. Others are times log2(e).
  static constexpr bool kNatural = Tile::kExact && Op::kBiased && !Op::kCapped;
  static constexpr float kUnit = kNatural ? kFlashLog2E : 1.0f;
  static constexpr bool kRaises = Op::kHiddenWeighOnce || Op::kHiddenWeighWindow;

  static __device__ float nothing() { return __uint_as_float(0xff800000u); }  // the score of a hidden key

  struct Rows {  // of a lane: lane / 4 and that plus 8 of the warp's 16
    float top[2] = {nothing(), nothing()};
    float sum[2] = {0.0f, 0.0f};
    float y[Tile::kTiles][4] = {};
  };

  // --- which keys ---

  // The first key that a query of the block sees, of those where a tile may begin.
  __device__ static unsigned first_seen(const Params& p, const Place& at) {
    if constexpr (!Op::kBegins) return 0;
    const int first = static_cast<int>(at.first) + p.behind - p.before;
    return first <= 0 ? 0 : static_cast<unsigned>(first) / Tile::kKeys * Tile::kKeys;
  }

  // Behind the last key that a query of the block sees.
  __device__ static unsigned keys_seen(const Params& p, const Place& at) {
    if constexpr (!Op::kEnds) return p.keys;
    const int end = static_cast<int>(at.first) + Tile::kQueries + p.behind + p.after;
    return end <= 0 ? 0 : min(p.keys, static_cast<unsigned>(end));
  }

  // The keys that a query sees: from `begin` on, `end` is the first one behind them.
  __device__ static void seen(const Params& p, unsigned query, int& begin, int& end) {
    const int position = static_cast<int>(query) + p.behind;
    begin = Op::kBegins ? max(0, position - p.before) : 0;
    end = static_cast<int>(p.keys);
    if constexpr (Op::kEnds) end = min(end, position + 1 + p.after);
  }

  // Whether every query of the block's band that begins there sees every key of a tile.
  __device__ static bool sees_all(const Params& p, const Place& at, unsigned first) {
    const int position = static_cast<int>(at.first) + p.behind;
    if (first + Tile::kKeys > p.keys) return false;
    if (Op::kEnds && static_cast<int>(first) + Tile::kKeys > position + 1 + p.after) return false;
    return !Op::kBegins || static_cast<int>(first) >= position + Tile::kBandQueries - 1 - p.before;
  }

  __device__ static unsigned query_of_lane(const Place& at) {
    return at.first + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  }

  // Hides keys that there are none of, and those that local queries do not see.
  __device__ static void hide(const Params& p, const Place& at, unsigned first, Scores& s) {
    if constexpr (kRaises) raise(low(p), s);
    if (sees_all(p, at, first)) return;
    const unsigned query = query_of_lane(at);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int begin;
      int end;
      seen(p, query + 8 * half, begin, end);
#pragma unroll
      for (int j = 0; j < kKeyTiles; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int of_score = static_cast<int>(first) + Scores::key(j, e);
          if (of_score >= end || (Op::kBegins && of_score < begin)) s.at[j][2 * half + e] = nothing();
        }
      }
    }
  }

  // Makes `least` of lower scores; NaN stays.
  __device__ static void raise(float least, Scores& s) {
#pragma unroll
    for (int j = 0; j < kKeyTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s.at[j][e] = s.at[j][e] < least ? least : s.at[j][e];
    }
  }

  // kLow as scores are here, which a cap has scaled.
  __device__ static float low(const Params& p) { return Op::kCapped || kNatural ? kLow : kLow / p.scale; }

  // --- scores ---

  __device__ static const T* bias_of(const Params& p, const Place& at) {
    return static_cast<const T*>(p.bias) + at.batch % p.bias_period * p.bias_batch + at.head * p.bias_head;
  }

  // A score, times log2(e). Of a cap c: c tanh(x / c).
  __device__ static float scaled(const Params& p, float score) {
    if constexpr (Op::kCapped) return p.cap * approximate::tanh(score * p.scale);
    return score * p.scale;
  }

  // --- weights ---

  __device__ static float sink(const Params& p, const Place& at) {
    return kFlashLog2E * widen(static_cast<const T*>(p.sinks)[at.head]);
  }

  // A sink is a key that all rows see, and whose value is zero. One lane of each row's four counts it.
  __device__ static void begin(const Params& p, const Place& at, Rows& rows) {
    if constexpr (Op::kSinks) {
      rows.top[0] = rows.top[1] = sink(p, at) / kUnit;
      rows.sum[0] = rows.sum[1] = threadIdx.x % 4 == 0 && rows.top[0] > nothing() ? 1.0f : 0.0f;
    }
  }

  // The power of two that is the weight of a score without its scale. In bfloat16 and float32, hidden keys may score so
  // low that a product which `base` has rounded and this has not would differ by more than a power of two can be.
  __device__ static float exponent(float score, float scale, float base) {
    if constexpr (Op::kBiased && kReachesFar<T>) return add_rounded(score * scale, -base);
    return ::fmaf(score, scale, -base);
  }

  // Weights in place of scores; what was summed before is scaled to the new largest score. kFinal: scores are scaled.
  template <bool kFinal>
  __device__ static void weigh(float scale, Scores& s, Rows& rows) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = s.at[0][2 * half];
#pragma unroll
      for (int j = 0; j < kKeyTiles; ++j) top = ::fmaxf(top, ::fmaxf(s.at[j][2 * half], s.at[j][2 * half + 1]));
      top = ::fmaxf(top, shuffle_xor(top, 1));
      top = ::fmaxf(top, shuffle_xor(top, 2));
      if constexpr (!kFinal && !kNatural) top *= scale;
      top = ::fmaxf(top, rows.top[half]);
      const float base = top == nothing() ? 0.0f : top;
      const float factor = ptx::exp2(kUnit * (rows.top[half] - base));
      rows.top[half] = top;
      float sum[kSums] = {rows.sum[half] * factor};
#pragma unroll
      for (int j = 0; j < kKeyTiles; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s.at[j][2 * half + e];
          x = ptx::exp2(kNatural ? kUnit * (x - base) : kFinal ? x - base : exponent(x, scale, base));
          sum[e % kSums] += x;
        }
      }
      rows.sum[half] = sum[0] + (kSums == 2 ? sum[kSums - 1] : 0.0f);
#pragma unroll
      for (int j = 0; j < Tile::kTiles; ++j) {
        rows.y[j][2 * half] *= factor;
        rows.y[j][2 * half + 1] *= factor;
      }
    }
  }
};

}  // namespace onnxopt
