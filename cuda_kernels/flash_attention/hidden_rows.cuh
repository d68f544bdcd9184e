// Rows whose every key a bias hides, as those of padding before or after a sequence.
//
// In float16, a score beside -65504 is rounded away, so that such a row weighs all keys alike. So it does where the
// bias and a window come from one mask: keys outside of the window count too, which were not visited. The row becomes
// the mean of all values. The warps of the block share the sum.
#pragma once

#include "device/scalar.cuh"
#include "device/shuffle.cuh"
#include "device/vector.cuh"
#include "flash_attention/operands.cuh"
#include "flash_attention/softmax.cuh"

namespace onnxopt {

// A block whose threads all come here.
struct FlashThreads {
  __device__ static bool any(bool of_thread) { return __syncthreads_or(of_thread) != 0; }
  __device__ static void wait() { __syncthreads(); }
};

// Op: as of FlashAttention. Threads: those of a block that hold rows.
template <typename Op, typename Tile, typename Threads>
struct FlashHiddenRows {
  using Params = FlashAttentionParams;
  using Place = FlashPlace;
  using T = typename Op::Stored;
  using Operands = FlashOperands<T, Tile>;
  using Softmax = FlashSoftmax<Op, Tile>;
  using Rows = typename Softmax::Rows;

  static constexpr bool kMayBe = Op::kBiased && Op::kHiddenWeighAll;
  static constexpr bool kHasWindow = Op::kBegins || Op::kEnds;
  static constexpr float kHidden =
      (kHasWindow ? -5e3f : -2e4f) * kFlashLog2E;  // scores of hidden keys are this or less
  static constexpr int kColumns = 8 * Tile::kTiles;

  // shared: bytes for kColumns floats of every warp, which nothing else needs any more.
  __device__ static void complete(const Params& p, const Place& at, Rows& rows, unsigned char* shared) {
    if constexpr (kMayBe) {
      const unsigned query = Softmax::query_of_lane(at);
      const bool hidden[2] = {query < p.queries && rows.top[0] <= kHidden,
                              query + 8 < p.queries && rows.top[1] <= kHidden};
      if (!Threads::any(hidden[0] || hidden[1])) return;
      float* const sums = reinterpret_cast<float*>(shared);
      add_up(p, at, sums + threadIdx.x / 32 * kColumns);
      Threads::wait();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (!hidden[half]) continue;
        rows.sum[half] = 0.25f * static_cast<float>(p.keys);  // four lanes hold a row
#pragma unroll
        for (int j = 0; j < Tile::kTiles; ++j) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float sum = 0.0f;
            for (int w = 0; w < Tile::kWarps; ++w) sum += sums[w * kColumns + 8 * j + threadIdx.x % 4 * 2 + e];
            rows.y[j][2 * half + e] = sum;
          }
        }
      }
      Threads::wait();
    }
  }

  // The sums of the warp's share of all values.
  __device__ static void add_up(const Params& p, const Place& at, float* sums) {
    const unsigned lane = threadIdx.x % 32;
    float found[Tile::kTiles][2] = {};
#pragma unroll 4
    for (unsigned key = threadIdx.x / 4; key < p.keys; key += 8 * Tile::kWarps) {
      const T* const values = Operands::of(p.v, at.batch, at.head / p.group, key);
#pragma unroll
      for (int j = 0; j < Tile::kTiles; ++j) add_pair(values, 8 * j + lane % 4 * 2, found[j]);
    }
#pragma unroll
    for (int j = 0; j < Tile::kTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float sum = found[j][e];
        for (int step = 4; step < 32; step *= 2) sum += shuffle_xor(sum, step);
        if (lane < 4) sums[8 * j + lane * 2 + e] = sum;
      }
    }
  }

  __device__ static void add_pair(const T* values, unsigned column, float (&to)[2]) {
    if constexpr (Tile::kAccess >= 4 && Tile::kValues % 2 == 0) {
      if (column >= Tile::kValues) return;
      const Vector<T, 2> pair = load_vector<T, 2>(values + column);
      to[0] += widen(pair.at[0]);
      to[1] += widen(pair.at[1]);
    } else {
      if (column < Tile::kValues) to[0] += widen(values[column]);
      if (column + 1 < Tile::kValues) to[1] += widen(values[column + 1]);
    }
  }
};

}  // namespace onnxopt
