// Attention of many queries by multiplications and additions alone, where the GPU has no products of the dtype.
#pragma once

#include "device/early_launch.cuh"
#include "flash_attention/bias.cuh"
#include "flash_attention/hidden_rows.cuh"
#include "flash_attention/softmax.cuh"

namespace onnxopt {

// Op: as of FlashAttention.
template <typename Op, typename Tile>
struct FlashPlain {
  using Params = FlashAttentionParams;
  using T = typename Op::Stored;
  using Place = FlashPlace;
  using Softmax = FlashSoftmax<Op, Tile>;
  using Operands = FlashOperands<T, Tile>;
  using Bias = FlashBias<Op, Tile>;
  using HiddenRows = FlashHiddenRows<Op, Tile, FlashThreads>;
  static constexpr int kOfLane = (Tile::kValues + 31) / 32;

  // One query. A lane weighs every 32nd key, and sums every 32nd element of the result.
  __device__ static void attend(const Params& p, const Place& at, unsigned query) {
    const unsigned lane = threadIdx.x % 32;
    const T* const q = Operands::of(p.q, at.batch, at.head, query);
    const T* const bias = Softmax::bias_of(p, at) + static_cast<uint64_t>(query) * p.bias_query;
    int begin;
    int end;
    Softmax::seen(p, query, begin, end);
    float top = Op::kSinks ? Softmax::sink(p, at) : Softmax::nothing();
    float sum = lane == 0 && top > Softmax::nothing() ? 1.0f : 0.0f;
    float y[kOfLane] = {};
#pragma unroll 1
    for (int first = begin; first < end; first += 32) {
      const int key = first + static_cast<int>(lane);
      float weight = Softmax::nothing();
      if (key < end) {
        const T* const k = Operands::of(p.k, at.batch, at.head / p.group, key);
        float score = 0.0f;
        for (int j = 0; j < Tile::kWidth; ++j) score = ::fmaf(widen(q[j]), widen(k[j]), score);
        weight = Softmax::scaled(p, score);
        if constexpr (Op::kBiased) weight += Bias::scaled(widen(bias[key]), kFlashLog2E);
        if constexpr (Softmax::kRaises) weight = weight < Softmax::kLow ? Softmax::kLow : weight;
      }
      float largest = weight;
      for (int mask = 16; mask > 0; mask /= 2) largest = ::fmaxf(largest, shuffle_xor(largest, mask));
      largest = ::fmaxf(largest, top);
      const float base = largest == Softmax::nothing() ? 0.0f : largest;
      const float factor = ptx::exp2(top - base);
      top = largest;
      weight = ptx::exp2(weight - base);
      sum = sum * factor + weight;
      for (int c = 0; c < kOfLane; ++c) y[c] *= factor;
      add_values(p, at, weight, first, end, y);
    }
    if constexpr (HiddenRows::kMayBe) {
      if (top <= Softmax::kHidden) {
        const int keys = static_cast<int>(p.keys);
        if constexpr (Op::kHiddenWeighAll) {
          sum = 0.0f;
          for (int c = 0; c < kOfLane; ++c) y[c] = 0.0f;
        }
        for (int first = 0; first < keys; first += 32) {
          const int key = first + static_cast<int>(lane);
          const float weight = key < keys ? HiddenRows::weight(bias, key) : 0.0f;
          sum += weight;
          add_values(p, at, weight, first, keys, y);
        }
      }
    }
    for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
    const uint64_t token = static_cast<uint64_t>(at.batch) * p.queries + query;
    using Result = typename Op::Result;
    Result* const to = static_cast<Result*>(p.y) + (token * p.heads + at.head) * Tile::kValues;
    for (int c = 0; c < kOfLane; ++c) {
      const unsigned column = lane + 32 * c;
      if (column < Tile::kValues) to[column] = Narrow<Result>::from(Op::finish(y[c] / sum));
    }
  }

  // weight: of the lane's key, `first` and the lane's number.
  __device__ static void add_values(const Params& p, const Place& at, float weight, int first, int end,
                                    float (&y)[kOfLane]) {
    for (int t = 0; t < min(32, end - first); ++t) {
      const float of_key = __shfl_sync(0xffffffffu, weight, t, 32);
      const T* const v = Operands::of(p.v, at.batch, at.head / p.group, first + t);
      for (int c = 0; c < kOfLane; ++c) {
        const unsigned column = threadIdx.x % 32 + 32 * c;
        if (column < Tile::kValues) y[c] = ::fmaf(of_key, widen(v[column]), y[c]);
      }
    }
  }

  __device__ static void run(const Params& p, Place at) {
    begin_early();
    for (; at.batch < p.batch; at.batch += p.step) {
      for (unsigned query = threadIdx.x / 32; query < Tile::kQueries; query += Tile::kWarps) {
        if (at.first + query < p.queries) attend(p, at, at.first + query);
      }
    }
  }
};

}  // namespace onnxopt
