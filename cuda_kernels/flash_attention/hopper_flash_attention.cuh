// Attention of many queries by products of warpgroups, on Hopper.
//
// As flash_attention.cuh, with 64 queries a warpgroup, and products that run while the warps work on something else.
// Operands are float16 or bfloat16, heads a multiple of 8 elements wide, values as wide, rows aligned to 16 bytes.
//
// Turn i of a block needs keys i and values i - 1; the last one has values alone. They come together, and lie at places
// i and i - 1, counted modulo the stages. Without a copier, all threads bring what the turn
// kStages - 1 later needs; otherwise its warps do so as soon as the warpgroups are through with what lies there.
//
// Op: as of FlashAttention. Tile: see hopper_tile.cuh.
#pragma once

#include "device/arrivals.cuh"
#include "device/dynamic_shared.cuh"
#include "device/early_launch.cuh"
#include "flash_attention/flash_attention.cuh"
#include "flash_attention/hidden_rows.cuh"
#include "flash_attention/hopper_bias.cuh"
#include "flash_attention/hopper_operands.cuh"
#include "flash_attention/hopper_products.cuh"
#include "flash_attention/result.cuh"
#include "flash_attention/softmax.cuh"

namespace onnxopt {

template <typename Op, typename Tile>
struct FlashHopperAttention {
  using Params = FlashAttentionParams;
  using Place = FlashPlace;
  using T = typename Op::Stored;
  using Operands = FlashHopperOperands<T, Tile>;
  using Products = FlashHopperProducts<T, Tile>;
  using Softmax = FlashSoftmax<Op, Tile>;
  using Bias = FlashHopperBias<Op, Tile>;
  using Scores = typename Products::Scores;
  using Weights = typename Products::Weights;
  using Rows = typename Softmax::Rows;

  static constexpr int kThreads = 128 * Tile::kGroups;                     // of warpgroups
  static constexpr int kReaders = Op::kBiased ? kThreads : kThreads / 32;  // who tells that a stage is read

  struct Threads {                                              // as of FlashHiddenRows; a copier has ended
    static constexpr unsigned kNumber = 1 + 2 * Tile::kGroups;  // behind the other numbered barriers
    __device__ static bool any(bool of_thread) { return any_of_warps<kThreads>(kNumber, of_thread); }
    __device__ static void wait() { wait_for_warps<kThreads>(kNumber); }
  };
  using HiddenRows = FlashHiddenRows<Op, Tile, Threads>;

  static constexpr int kSharedBytes = Tile::kSharedBytes + Tile::kStages * Bias::kTileBytes;

  struct Block {
    Place at;
    unsigned begin;  // first key
    int tiles;       // of keys
    unsigned char* keys;
    unsigned char* values;
    unsigned char* queries;
    uint32_t arrived;  // barriers of all stages, 8 bytes each
    uint32_t read;     // the same
    uint32_t queries_of_group;
    unsigned char* bias;  // of all stages
  };

  __device__ static Block block(const Params& p) {
    Block b;
    b.at = FlashAttention<Op, Tile>::place(p);
    b.begin = Softmax::first_seen(p, b.at);
    const unsigned end = Softmax::keys_seen(p, b.at);
    b.tiles = end > b.begin ? (end - b.begin + Tile::kKeys - 1) / Tile::kKeys : 0;
    unsigned char* const shared = dynamic_shared();
    b.keys = shared + (0u - shared_address(shared)) % 1024;
    b.values = b.keys + Tile::kStages * Tile::kTileBytes;
    b.queries = b.values + Tile::kStages * Tile::kTileBytes;
    b.arrived = shared_address(b.queries) + Tile::kGroups * Tile::kGroupBytes;
    b.read = b.arrived + 8 * Tile::kStages;
    b.bias = b.queries + Tile::kGroups * Tile::kGroupBytes + Tile::kBarrierBytes;
    b.queries_of_group = shared_address(b.queries) + threadIdx.x / 128 * Tile::kGroupBytes;
    return b;
  }

  template <int kBy>
  __device__ static void fetch(const Params& p, const Block& b, int turn, unsigned thread) {
    const int values = turn - 1;
    if (turn < b.tiles) {
      unsigned char* const to = b.keys + turn % Tile::kStages * Tile::kTileBytes;
      Operands::template fetch_keys<kBy>(p, b.at, b.begin + turn * Tile::kKeys, to, thread);
      Bias::template fetch<128>(p, b.at, b.begin + turn * Tile::kKeys, bias_of(b, turn), thread);
    }
    if (values >= 0 && values < b.tiles) {
      unsigned char* const to = b.values + values % Tile::kStages * Tile::kTileBytes;
      Operands::template fetch_values<kBy>(p, b.at, b.begin + values * Tile::kKeys, to, thread);
    }
  }

  __device__ static uint32_t keys_of(const Block& b, int turn) {
    return shared_address(b.keys) + turn % Tile::kStages * Tile::kTileBytes;
  }

  __device__ static uint32_t values_of(const Block& b, int turn) {
    return shared_address(b.values) + turn % Tile::kStages * Tile::kTileBytes;
  }

  __device__ static unsigned char* bias_of(const Block& b, int turn) {
    return b.bias + turn % Tile::kStages * Bias::kTileBytes;
  }

  // Where results of the block's warps would begin: each warpgroup's lie behind each other at the place of its queries.
  __device__ static unsigned char* results(const Block& b) {
    return b.queries + threadIdx.x / 128 * (Tile::kGroupBytes - Tile::kResultBytes);
  }

  // --- turns ---

  // Until what the turn needs is there.
  __device__ static void begin_turn(const Block& b, int turn) {
    if constexpr (Tile::kCopier) {
      wait_for_phase(b.arrived + turn % Tile::kStages * 8, turn / Tile::kStages % 2);
      show_to_products();
    } else {
      wait_for_groups<Tile::kStages - 2>();
      show_to_products();
      __syncthreads();
    }
  }

  // Once the turn's products are asked for, where all threads copy: what is at the places of the turn before is read.
  __device__ static void fetch_later(const Params& p, const Block& b, int turn) {
    if constexpr (!Tile::kCopier) {
      fetch<kThreads>(p, b, turn + Tile::kStages - 1, threadIdx.x);
      end_group();
    }
  }

  // Once the turn's products have ended. What products read, one lane of a warp has read as the others have; a bias in
  // shared memory, each has read by itself.
  __device__ static void end_turn(const Block& b, int turn) {
    if constexpr (Tile::kCopier) {
      if (threadIdx.x % (kThreads / kReaders) == 0) arrive(b.read + turn % Tile::kStages * 8);
    }
  }

  // What the copier does.
  __device__ static void copy_all(const Params& p, const Block& b) {
#pragma unroll 1
    for (int turn = 0; turn < b.tiles + 1; ++turn) {
      const int stage = turn % Tile::kStages;
      if (turn >= Tile::kStages) wait_for_phase(b.read + stage * 8, (turn / Tile::kStages - 1) % 2);
      fetch<128>(p, b, turn, threadIdx.x % 128);
      arrive_with_copies(b.arrived + stage * 8);
    }
    wait_for_copies();
  }

  // --- warpgroups one after the other ---

  static constexpr unsigned kFirstTurn = 1 + Tile::kGroups;  // of the numbered barriers; those before are of a group

  __device__ static void take_turn() {
    if constexpr (Tile::kInTurn) wait_for_warps<256>(kFirstTurn + threadIdx.x / 128);
  }

  // last: the warpgroup takes no further turn.
  __device__ static void pass_turn(bool last) {
    if constexpr (Tile::kInTurn) {
      const unsigned next = threadIdx.x / 128 + 1;
      if (next < Tile::kGroups) {
        pass_by<256>(kFirstTurn + next);
      } else if (!last) {
        pass_by<256>(kFirstTurn);
      }
    }
  }

  // --- softmax ---

  // Weights in place of scores, and what was summed before is scaled by.
  __device__ static void weigh(float scale, Scores& s, Rows& rows, float (&factor)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = ::fmaxf(largest(s, 2 * half), largest(s, 2 * half + 1));
      top = ::fmaxf(top, shuffle_xor(top, 1));
      top = ::fmaxf(top, shuffle_xor(top, 2));
      top = ::fmaxf(top * scale, rows.top[half]);
      const float base = top == Softmax::nothing() ? 0.0f : top;
      factor[half] = ptx::exp2(rows.top[half] - base);
      rows.top[half] = top;
      float sum[2] = {rows.sum[half] * factor[half], 0.0f};
#pragma unroll
      for (int j = 0; j < Tile::kKeyTiles; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s.at[j][2 * half + e];
          x = ptx::exp2(Softmax::exponent(x, scale, base));
          sum[e] += x;
        }
      }
      rows.sum[half] = sum[0] + sum[1];
    }
  }

  __device__ static float largest(const Scores& s, int e) {
    float top = s.at[0][e];
#pragma unroll
    for (int j = 1; j < Tile::kKeyTiles; ++j) top = ::fmaxf(top, s.at[j][e]);
    return top;
  }

  __device__ static void scale_values(const float (&factor)[2], Rows& rows) {
#pragma unroll
    for (int j = 0; j < Tile::kTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) rows.y[j][e] *= factor[e / 2];
    }
  }

  // Of the tile of keys from `first` on.
  __device__ static void weigh_tile(const Params& p, const Place& at, unsigned first, Scores& s, Rows& rows,
                                    float (&factor)[2]) {
    if constexpr (Op::kCapped) {
      static_assert(!Op::kBiased, "products add scores to the bias");
#pragma unroll
      for (int j = 0; j < Tile::kKeyTiles; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) s.at[j][e] = Softmax::scaled(p, s.at[j][e]);
      }
    }
    Softmax::hide(p, at, first, s);
    weigh(Op::kCapped ? 1.0f : p.scale, s, rows, factor);
  }

  // --- all tiles, of which there is one at least ---

  // A turn asks for its scores, and for the sums of the turn before. It weighs the scores while the sums are made.
  __device__ static void attend(const Params& p, const Block& b, Rows& rows) {
    Scores s;
    Weights weights;
    float factor[2];
    if (Tile::kInTurn && threadIdx.x / 128 == Tile::kGroups - 1) pass_by<256>(kFirstTurn);
    Bias::load(p, b.at, b.begin, s);
    begin_turn(b, 0);
    Bias::take(p, bias_of(b, 0), s);
    take_turn();
    Products::template score<Op::kBiased>(b.queries_of_group, keys_of(b, 0), s);
    pass_turn(b.tiles == 1);
    fetch_later(p, b, 0);
    wait_for_products<0>();
    pin(s.at);
    end_turn(b, 0);
    weigh_tile(p, b.at, b.begin, s, rows, factor);
    Products::narrow(s, weights);
#pragma unroll 1
    for (int turn = 1; turn < b.tiles; ++turn) {
      Bias::load(p, b.at, b.begin + turn * Tile::kKeys, s);
      begin_turn(b, turn);
      Bias::take(p, bias_of(b, turn), s);
      take_turn();
      Products::template score<Op::kBiased>(b.queries_of_group, keys_of(b, turn), s);
      Products::add_values(weights, values_of(b, turn - 1), rows.y);
      pass_turn(turn + 1 == b.tiles);
      fetch_later(p, b, turn);
      wait_for_products<1>();
      pin(s.at);
      weigh_tile(p, b.at, b.begin + turn * Tile::kKeys, s, rows, factor);
      stay_behind(rows.sum[0] + rows.sum[1]);
      wait_for_products<0>();
      pin(rows.y);
      pin(weights.at);
      end_turn(b, turn);
      scale_values(factor, rows);
      Products::narrow(s, weights);
    }
    begin_turn(b, b.tiles);
    add_last(b, b.tiles - 1, weights, rows);
  }

  __device__ static void add_last(const Block& b, int turn, Weights& weights, Rows& rows) {
    Products::add_values(weights, values_of(b, turn), rows.y);
    wait_for_products<0>();
    pin(rows.y);
    pin(weights.at);
  }

  __device__ static void run(const Params& p) {
    if constexpr (kWarpgroupProducts) {
      run_products(p);
    } else {
      __trap();
    }
  }

  __device__ static void run_products(const Params& p) {
    static_assert(Tile::kStages > 1, "what comes next is on its way");
    const Block b = block(p);
    if constexpr (Tile::kCopier) {
      if (threadIdx.x == 0) {
        for (int stage = 0; stage < Tile::kStages; ++stage) {
          make_barrier(b.arrived + stage * 8, 128);
          make_barrier(b.read + stage * 8, kReaders);
        }
      }
      __syncthreads();
    }
    begin_early();
    if constexpr (Tile::kCopier) {
      if (threadIdx.x >= kThreads) {
        leave_registers<Tile::kOfCopier>();
        copy_all(p, b);
        return;
      }
      take_registers<Tile::kOfOthers>();
    }
    Rows rows;
    Softmax::begin(p, b.at, rows);
    Operands::fetch_queries(p, b.at, b.queries);
    if constexpr (Tile::kCopier) {
      wait_for_copies();
      show_to_products();
      wait_for_warps<kThreads>(1);
    } else {
#pragma unroll
      for (int turn = 0; turn < Tile::kStages - 1; ++turn) {
        fetch<kThreads>(p, b, turn, threadIdx.x);
        end_group();
      }
    }
    if (b.tiles > 0) attend(p, b, rows);
    wait_for_groups<0>();
    wait_for_warps<128>(1 + threadIdx.x / 128);  // products read all queries of the group
    HiddenRows::complete(p, b.at, rows, b.queries);
    FlashResult<Op, Tile>::write(p, b.at, rows, results(b));
  }

  // For at least one key and at most kKeys.
  __device__ static void run_short(const Params& p) {
    if constexpr (kWarpgroupProducts) {
      run_short_products(p);
    } else {
      __trap();
    }
  }

  __device__ static void run_short_products(const Params& p) {
    const Block b = block(p);
    begin_early();
    Operands::fetch_queries(p, b.at, b.queries);
    Operands::template fetch_keys<kThreads>(p, b.at, 0, b.keys, threadIdx.x);
    Bias::template fetch<128>(p, b.at, 0, b.bias, threadIdx.x);
    end_group();
    Operands::template fetch_values<kThreads>(p, b.at, 0, b.values, threadIdx.x);
    end_group();
    Rows rows;
    Softmax::begin(p, b.at, rows);
    Scores s;
    Bias::load(p, b.at, 0, s);
    wait_for_groups<1>();
    show_to_products();
    __syncthreads();
    Bias::take(p, b.bias, s);
    Weights weights;
    float factor[2];
    Products::template score<Op::kBiased>(b.queries_of_group, keys_of(b, 0), s);
    wait_for_products<0>();
    pin(s.at);
    weigh_tile(p, b.at, 0, s, rows, factor);
    Products::narrow(s, weights);
    wait_for_groups<0>();
    show_to_products();
    __syncthreads();
    add_last(b, 0, weights, rows);
    HiddenRows::complete(p, b.at, rows, b.queries);
    FlashResult<Op, Tile>::write(p, b.at, rows, results(b));
  }
};

}  // namespace onnxopt
