// Attention of many queries, whose scores never leave the multiprocessor: softmax(scale q k^T + bias) v, on the matrix
// units, with float32 scores, softmax and sums.
//
// A block takes 16 queries of a head for each of its warps, and the keys kKeys at a time. It brings them and their
// values to shared memory, padded with zeros to whole products; with two stages, what comes next is on its way
// meanwhile. q, k and v are read where they lie: in one packed tensor or in three. Each row's largest score so far and
// the sum of its weights stay in registers, as the weights do between both products. Of local attention, a block visits
// only the tiles of keys that one of its queries sees.
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
#include "flash_attention/hidden_rows.cuh"
#include "flash_attention/operands.cuh"
#include "flash_attention/plain.cuh"
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
  using Scores = typename Products::Scores;
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

  // What the tile of keys from `first` on, which lies at `keys`, adds to the rows. bias: loaded where there is one.
  __device__ static void attend(const Params& p, const Place& at, unsigned first, const Queries& held, uint32_t queries,
                                uint32_t keys, const Scores& bias, Rows& rows) {
    Scores s;
    Products::score(held, queries, keys, s);
    if constexpr (Softmax::kFinal) Softmax::finish(p, bias, s);
    Softmax::hide(p, at, first, s);
    Softmax::weigh(p.scale, s, rows);
    Products::add_values(s, keys + Tile::kKeyBytes, rows.y);
  }

  static constexpr int kSharedBytes = Tile::kQueryBytes + Tile::kStages * Tile::kStageBytes;

  __device__ static void run(const Params& p) {
    if constexpr (has_products<T>()) {
      run_products(p);
    } else {
      FlashPlain<Op, Tile>::run(p, place(p));
    }
  }

  __device__ static void run_products(const Params& p) {
    unsigned char* const queries = dynamic_shared();
    unsigned char* const stages = queries + Tile::kQueryBytes;
    const Place at = place(p);
    const unsigned begin = Softmax::first_seen(p, at);
    const unsigned keys = Softmax::keys_seen(p, at);
    begin_early();
    Operands::fetch_queries(p, at, queries);
    if (keys > begin) Operands::fetch_keys(p, at, begin, stages);
    end_group();
    Queries held;
    Rows rows;
    Softmax::begin(p, at, rows);
#pragma unroll 1
    for (unsigned first = begin; first < keys; first += Tile::kKeys) {
      const unsigned stage = Tile::kStages == 2 ? (first - begin) / Tile::kKeys % 2 : 0;
      if (first > begin) __syncthreads();  // all have read what was there before
      if constexpr (Tile::kStages == 1) {
        if (first > begin) Operands::fetch_keys(p, at, first, stages);
      } else {
        if (first + Tile::kKeys < keys) {
          Operands::fetch_keys(p, at, first + Tile::kKeys, stages + (stage ^ 1) * Tile::kStageBytes);
        }
      }
      if (Tile::kStages == 2 || first > begin) end_group();
      Scores bias;
      if constexpr (Op::kBiased) Softmax::load_bias(p, at, first, bias);
      wait_for_groups<Tile::kStages - 1>();
      __syncthreads();
      if (first == begin) Products::hold(shared_address(queries), held);
      const uint32_t now = shared_address(stages + stage * Tile::kStageBytes);
      attend(p, at, first, held, shared_address(queries), now, bias, rows);
    }
    wait_for_groups<0>();  // also where no key is seen
    HiddenRows::complete(p, at, rows, queries);
    FlashResult<Op, Tile>::write(p, at, rows, queries);
  }

  static constexpr int kShortBytes = 2 * (Tile::kQueryBytes + Tile::kStageBytes);

  __device__ static void fetch_all(const Params& p, const Place& at, unsigned char* to) {
    Operands::fetch_queries(p, at, to);
    Operands::fetch_keys(p, at, 0, to + Tile::kQueryBytes);
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
    Scores bias;
    const bool same = p.step % p.bias_period == 0;
    if constexpr (Op::kBiased) {
      if (same) Softmax::load_bias(p, at, 0, bias);
    }
    unsigned turn = 0;
#pragma unroll 1
    for (; at.batch < p.batch; at.batch += p.step, turn ^= 1) {
      unsigned char* const queries = shared + turn * (kShortBytes / 2);
      const Place next = {at.batch + p.step, at.head, at.first};
      if (next.batch < p.batch) fetch_all(p, next, shared + (turn ^ 1) * (kShortBytes / 2));
      end_group();
      if constexpr (Op::kBiased) {
        if (!same) Softmax::load_bias(p, at, 0, bias);
      }
      wait_for_groups<1>();
      __syncthreads();
      Queries held;
      Rows rows;
      Softmax::begin(p, at, rows);
      Products::hold(shared_address(queries), held);
      const uint32_t now = shared_address(queries + Tile::kQueryBytes);
      attend(p, at, 0, held, shared_address(queries), now, bias, rows);
      HiddenRows::complete(p, at, rows, queries);
      FlashResult<Op, Tile>::write(p, at, rows, queries);
      __syncthreads();  // all have read what the next but one comes to
    }
  }
};

}  // namespace onnxopt
