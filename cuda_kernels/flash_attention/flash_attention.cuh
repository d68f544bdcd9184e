// Attention of many queries, whose scores never leave the multiprocessor: softmax(scale q k^T + bias) v, on the matrix
// units, with float32 scores, softmax and sums.
//
// A block takes 16 queries of a head for each band of its warps, and the keys kKeys at a time. It brings them and their
// values to shared memory, padded with zeros to whole products. With two stages, what comes next is on its way
// meanwhile; with one, values come while scores are made, and the next keys while values are added. q, k and v are read
// where they lie: in one packed tensor or in three. Each row's largest score so far and the sum of its weights stay in
// registers, as the weights do between both products. Of local attention, a block visits only the tiles of keys that
// one of its queries sees.
//
// run() takes any number of keys. run_short() takes kKeys at most, and goes through sequences with the bias in
// registers.
//
// Op has: Stored, Result (dtype of y), finish() (what becomes of a result before it is stored), kBegins and kEnds
// (whether local queries do not see the keys far in front of them, or behind), kBiased, kCapped, kSinks. Tile: see
// tile.cuh.
#pragma once

#include "device/dynamic_shared.cuh"
#include "device/early_launch.cuh"
#include "flash_attention/bias.cuh"
#include "flash_attention/fma_attention.cuh"
#include "flash_attention/hidden_rows.cuh"
#include "flash_attention/operands.cuh"
#include "flash_attention/products.cuh"
#include "flash_attention/result.cuh"
#include "flash_attention/softmax.cuh"
#include "flash_attention/tile.cuh"

namespace onnxopt {

template <typename Op, typename Tile>
struct FlashAttention {
  using Params = FlashAttentionParams;
  using Place = FlashPlace;
  using T = typename Op::Stored;
  using Operands = FlashOperands<T, Tile>;
  using Products = FlashProducts<T, Tile>;
  using Softmax = FlashSoftmax<Op, Tile>;
  using Queries = typename Products::Queries;
  using Bias = FlashBias<Op, Tile>;
  using Tiles = typename Products::Scores[Tile::kBands];
  using HiddenRows = FlashHiddenRows<Op, Tile, FlashThreads>;
  using Rows = typename Softmax::Rows;

  __device__ static Place place(const Params& p) {
    const unsigned tile = blockIdx.x % p.tiles;
    const unsigned head = blockIdx.x / p.tiles;
    Place at;
    at.batch = head / p.heads;
    at.head = head - at.batch * p.heads;
    at.first = (Op::kEnds ? p.tiles - 1 - tile : tile) * Tile::kQueries;  // the longest ones first
    return at;
  }

  // The place of some of the block's queries, 16 of each warp.
  __device__ static Place band(const Place& at, int number) {
    return {at.batch, at.head, at.first + number * Tile::kBandQueries};
  }

  // --- scores ---

  struct Biases {  // of the lane's queries and a tile of keys
    typename Bias::Runs of[Tile::kBands];
  };

  // Asks for what is not copied, where there is any.
  __device__ static void load_bias(const Params& p, const Place& at, unsigned first, Biases& biases) {
    if constexpr (Op::kBiased) {
      if (Bias::is_copied(p)) return;
#pragma unroll
      for (int k = 0; k < Tile::kBands; ++k) Bias::load(p, band(at, k), first, biases.of[k]);
    }
  }

  __device__ static void take_bias(const Params& p, const Biases& biases, const unsigned char* copied, Tiles& s) {
    if constexpr (Op::kBiased) {
      const float factor = Bias::factor(p);
      if (Bias::is_copied(p)) {
        Bias::take(copied, factor, s[0]);
#pragma unroll
        for (int k = 1; k < Tile::kBands; ++k) s[k] = s[0];
      } else {
#pragma unroll
        for (int k = 0; k < Tile::kBands; ++k) Bias::take(biases.of[k], factor, s[k]);
      }
    }
  }

  // Scores of the tile of keys from `first` on, which lies at `keys`. s: the bias, where there is one.
  __device__ static void score(const Params& p, const Queries& held, uint32_t queries, uint32_t keys, Tiles& s) {
    if constexpr (!Op::kCapped && !Softmax::kNatural) {
      Products::template score<Op::kBiased>(held, queries, keys, s);
      return;
    }
    Tiles x;
    Products::score(held, queries, keys, x);
#pragma unroll
    for (int k = 0; k < Tile::kBands; ++k) {
#pragma unroll
      for (int j = 0; j < Tile::kKeyTiles; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float product = x[k].at[j][e];
          const float score = Softmax::kNatural ? product * (p.scale / Softmax::kUnit) : Softmax::scaled(p, product);
          const float bias = Op::kBiased ? s[k].at[j][e] : 0.0f;
          s[k].at[j][e] = Softmax::kNatural ? add_rounded(score, bias) : score + bias;
        }
      }
    }
  }

  __device__ static void weigh(const Params& p, const Place& at, unsigned first, Tiles& s, Rows (&rows)[Tile::kBands]) {
#pragma unroll
    for (int k = 0; k < Tile::kBands; ++k) {
      Softmax::hide(p, band(at, k), first, s[k]);
      Softmax::template weigh<Op::kCapped>(p.scale, s[k], rows[k]);
    }
  }

  __device__ static void store(const Params& p, const Place& at, Rows (&rows)[Tile::kBands], unsigned char* queries) {
#pragma unroll
    for (int k = 0; k < Tile::kBands; ++k) {
      HiddenRows::complete(p, band(at, k), rows[k], queries);
      FlashResult<Op, Tile>::write(p, band(at, k), rows[k], queries + k * Tile::kBandBytes);
    }
  }

  // --- tiles of keys, any number of them ---

  // A stage: keys, their bias, values.
  static constexpr int kValuesAt = Tile::kKeyBytes + Bias::kTileBytes;
  static constexpr int kStageBytes = Tile::kStageBytes + Bias::kTileBytes;
  // With one stage, queries that registers hold lie where its values come to.
  static constexpr bool kLends = Tile::kStages == 1 && Tile::kHoldsQueries;
  static constexpr int kValueBytes = Tile::kStageBytes - Tile::kKeyBytes;
  static constexpr int kLentBytes = kValueBytes > Tile::kQueryBytes ? kValueBytes : Tile::kQueryBytes;
  static constexpr int kSharedBytes = kLends ? kValuesAt + kLentBytes : Tile::kQueryBytes + Tile::kStages * kStageBytes;

  __device__ static void fetch_keys(const Params& p, const Place& at, unsigned first, unsigned char* stage) {
    Operands::fetch_keys(p, at, first, stage);
    Bias::template fetch<32>(p, at, first, stage + Tile::kKeyBytes, threadIdx.x);
  }

  __device__ static void fetch_values(const Params& p, const Place& at, unsigned first, unsigned char* stage) {
    Operands::fetch_values(p, at, first, stage + kValuesAt);
  }

  __device__ static void fetch_stage(const Params& p, const Place& at, unsigned first, unsigned char* stage) {
    fetch_keys(p, at, first, stage);
    fetch_values(p, at, first, stage);
  }

  __device__ static void run(const Params& p) {
    if constexpr (has_products<T>()) {
      run_products(p);
    } else {
      FlashPlain<Op, Tile>::run(p, place(p));
    }
  }

  __device__ static void run_products(const Params& p) {
    const Place at = place(p);
    const unsigned begin = Softmax::first_seen(p, at);
    const unsigned keys = Softmax::keys_seen(p, at);
    unsigned char* const stages = dynamic_shared() + (kLends ? 0 : Tile::kQueryBytes);
    unsigned char* const queries = kLends ? stages + kValuesAt : dynamic_shared();
    begin_early();
    Operands::fetch_queries(p, at, queries);
    unsigned char* now = stages;
    unsigned char* other = stages + (Tile::kStages - 1) * kStageBytes;
    if (keys > begin) fetch_keys(p, at, begin, now);
    if constexpr (Tile::kStages == 2) {
      if (keys > begin) fetch_values(p, at, begin, now);
      end_group();
      if (keys > begin + Tile::kKeys) fetch_stage(p, at, begin + Tile::kKeys, other);
    }
    end_group();
    Queries held;
    Rows rows[Tile::kBands];
    Biases biases;
#pragma unroll
    for (int k = 0; k < Tile::kBands; ++k) Softmax::begin(p, at, rows[k]);
    if (keys > begin) load_bias(p, at, begin, biases);
#pragma unroll 1
    for (unsigned first = begin; first < keys; first += Tile::kKeys) {
      const unsigned next = first + Tile::kKeys;
      const bool is_first = first == begin;
      if (is_first) {
        wait_for_groups<Tile::kStages - 1>();
      } else {
        wait_for_groups<0>();
      }
      __syncthreads();  // what all have asked for is there, and all have read what was there before
      if (is_first) {
        Products::hold(shared_address(queries), held);
        if (kLends) __syncthreads();
      }
      if constexpr (Tile::kStages == 1) {
        fetch_values(p, at, first, now);
      } else if (!is_first && next < keys) {
        fetch_stage(p, at, next, other);
      }
      end_group();
      Tiles s;
      take_bias(p, biases, now + Tile::kKeyBytes, s);
      if (next < keys) load_bias(p, at, next, biases);
      score(p, held, shared_address(queries), shared_address(now), s);
      if constexpr (Tile::kStages == 1) {
        wait_for_groups<0>();
        __syncthreads();
        if (next < keys) fetch_keys(p, at, next, now);
        end_group();
      }
      weigh(p, at, first, s, rows);
      Products::add_values(s, shared_address(now) + kValuesAt, rows);
      unsigned char* const done = now;
      now = other;
      other = done;
    }
    wait_for_groups<0>();  // also where no key is seen
    if (kLends) __syncthreads();
    store(p, at, rows, queries);
  }

  // --- one tile of keys ---

  static constexpr int kTurnBytes = Tile::kQueryBytes + kStageBytes;
  static constexpr int kShortBytes = 2 * kTurnBytes;

  __device__ static void fetch_all(const Params& p, const Place& at, unsigned char* to) {
    Operands::fetch_queries(p, at, to);
    fetch_stage(p, at, 0, to + Tile::kQueryBytes);
  }

  // For at least one key and at most kKeys. A block takes one sequence after the other, the next one on its way.
  __device__ static void run_short(const Params& p) {
    if constexpr (has_products<T>()) {
      run_short_products(p);
    } else {
      FlashPlain<Op, Tile>::run(p, place(p));
    }
  }

  __device__ static void run_short_products(const Params& p) {
    unsigned char* const shared = dynamic_shared();
    Place at = place(p);  // batch: below step
    begin_early();
    fetch_all(p, at, shared);
    end_group();
    Biases biases;
    const bool same = p.step % p.bias_period == 0;
    if (same) load_bias(p, at, 0, biases);
    unsigned turn = 0;
#pragma unroll 1
    for (; at.batch < p.batch; at.batch += p.step, turn ^= 1) {
      unsigned char* const queries = shared + turn * kTurnBytes;
      unsigned char* const now = queries + Tile::kQueryBytes;
      const Place next = {at.batch + p.step, at.head, at.first};
      if (next.batch < p.batch) fetch_all(p, next, shared + (turn ^ 1) * kTurnBytes);
      end_group();
      if (!same) load_bias(p, at, 0, biases);
      wait_for_groups<1>();
      __syncthreads();
      Queries held;
      Rows rows[Tile::kBands];
#pragma unroll
      for (int k = 0; k < Tile::kBands; ++k) Softmax::begin(p, at, rows[k]);
      Products::hold(shared_address(queries), held);
      Tiles s;
      take_bias(p, biases, now + Tile::kKeyBytes, s);
      score(p, held, shared_address(queries), shared_address(now), s);
      weigh(p, at, 0, s, rows);
      Products::add_values(s, shared_address(now) + kValuesAt, rows);
      store(p, at, rows, queries);
      __syncthreads();  // all have read what the next but one comes to
    }
  }
};

}  // namespace onnxopt
