// Rows whose every key a bias hides, as those of padding before or after a sequence.
//
// In 16 bits, a score beside -65504 is rounded away, so that such a row weighs alike
//
//     all keys, where the bias and a window come from one mask (kHiddenWeighAll)
//     the keys that are hidden once, where they are two masks that are added (kHiddenWeighOnce)
//     the keys of its window, where both masks hide the others (kHiddenWeighWindow)
//
// The keys of its window all score alike in the last two (FlashSoftmax::kLow), and the row has summed them. What the
// first two count outside of the window was not visited: of keys that are hidden once, those that the bias shows. It is
// the same for all rows, which share the bias, and the warps of the block share the sum.
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

  static constexpr bool kMayBe = Op::kBiased && (Op::kHiddenWeighAll || Op::kHiddenWeighOnce);
  static constexpr int kColumns = 8 * Tile::kTiles;
  static constexpr int kOfWarp = kColumns + 1;  // sums, the last of which counts keys

  // shared: bytes for kOfWarp floats of every warp, which nothing else needs any more.
  __device__ static void complete(const Params& p, const Place& at, Rows& rows, unsigned char* shared) {
    if constexpr (kMayBe) {
      const unsigned query = Softmax::query_of_lane(at);
      const bool hidden[2] = {query < p.queries && rows.top[0] <= Softmax::kHidden,
                              query + 8 < p.queries && rows.top[1] <= Softmax::kHidden};
      if (!Threads::any(hidden[0] || hidden[1])) return;
      float* const sums = reinterpret_cast<float*>(shared);
      add_up(p, at, sums + threadIdx.x / 32 * kOfWarp);
      Threads::wait();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (!hidden[half]) continue;
        const float weight = Op::kHiddenWeighAll ? 1.0f : weight_of_low(p, rows.top[half]);
        rows.sum[half] =
            sum_of_window(rows.sum[half]) + 0.25f * weight * sum_of(sums, kColumns);  // four lanes hold a row
#pragma unroll
        for (int j = 0; j < Tile::kTiles; ++j) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& y = rows.y[j][2 * half + e];
            y = sum_of_window(y) + weight * sum_of(sums, 8 * j + threadIdx.x % 4 * 2 + e);
          }
        }
      }
      Threads::wait();
    }
  }

  // What of a sum over the row's window counts.
  __device__ static float sum_of_window(float sum) { return Op::kHiddenWeighAll ? 0.0f : sum; }

  // Of a key beside those that count already.
  __device__ static float weight(const T* bias, int key) {
    return Op::kHiddenWeighAll || widen(bias[key]) * kFlashLog2E > Softmax::kHidden ? 1.0f : 0.0f;
  }

  // What the keys of the window weigh in a row with this largest score.
  __device__ static float weight_of_low(const Params& p, float top) {
    if (top == Softmax::nothing()) return 1.0f;
    if constexpr (Op::kCapped || Softmax::kNatural) return ptx::exp2(Softmax::kUnit * (Softmax::kLow - top));
    return ptx::exp2(Softmax::exponent(Softmax::low(p), p.scale, top));
  }

  __device__ static float sum_of(const float* sums, unsigned column) {
    float sum = 0.0f;
    for (int w = 0; w < Tile::kWarps; ++w) sum += sums[w * kOfWarp + column];
    return sum;
  }

  // The sums of the warp's share of all values that are to be added, and how many these are.
  __device__ static void add_up(const Params& p, const Place& at, float* sums) {
    const unsigned lane = threadIdx.x % 32;
    const T* const bias = Softmax::bias_of(p, at);
    float found[Tile::kTiles][2] = {};
    float keys = 0.0f;
#pragma unroll 4
    for (unsigned key = threadIdx.x / 4; key < p.keys; key += 8 * Tile::kWarps) {
      const float of_key = weight(bias, static_cast<int>(key));
      if (of_key == 0.0f) continue;
      keys += of_key;
      const T* const values = Operands::of(p.v, at.batch, at.head / p.group, key);
#pragma unroll
      for (int j = 0; j < Tile::kTiles; ++j) add_pair(values, 8 * j + lane % 4 * 2, found[j]);
    }
#pragma unroll
    for (int j = 0; j < Tile::kTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float sum = over_keys(found[j][e]);
        if (lane < 4) sums[8 * j + lane * 2 + e] = sum;
      }
    }
    keys = over_keys(keys);
    if (lane == 0) sums[kColumns] = keys;
  }

  // The sum of the warp's eight lanes that have the same columns.
  __device__ static float over_keys(float sum) {
    for (int step = 4; step < 32; step *= 2) sum += shuffle_xor(sum, step);
    return sum;
  }

  __device__ static void add_pair(const T* values, unsigned column, float (&to)[2]) {
    if constexpr (Tile::kAccess >= 2 * sizeof(T) && Tile::kValues % 2 == 0) {
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
