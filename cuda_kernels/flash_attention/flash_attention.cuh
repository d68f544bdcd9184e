// Attention of many queries, whose scores never leave the multiprocessor: softmax(scale q k^T + bias) v, on the matrix
// units, with float32 scores, softmax and sums.
//
// A block takes 16 queries of a head for each of its warps, and the keys kKeys at a time. It brings them and their
// values to shared memory, padded with zeros to whole products; with two stages, what comes next is on its way
// meanwhile. q, k and v are read where they lie: in one packed tensor or in three. Each row's largest score so far and
// the sum of its weights stay in registers, as the weights do between both products.
//
// run() takes any number of keys. run_short() takes kKeys at most, and goes through sequences with the bias in
// registers.
//
// Op has: Stored, kCausal, kBiased. Tile: see tile.cuh.
#pragma once

#include "device/copy_async.cuh"
#include "device/dynamic_shared.cuh"
#include "device/early_launch.cuh"
#include "device/matrix_words.cuh"
#include "device/ptx.cuh"
#include "device/scalar.cuh"
#include "device/shuffle.cuh"
#include "device/vector.cuh"
#include "flash_attention/abi.h"
#include "flash_attention/tile.cuh"

namespace onnxopt {

template <typename Op, typename Tile>
struct FlashAttention {
  using Params = FlashAttentionParams;
  using T = typename Op::Stored;
  static constexpr int kKeyTiles = Tile::kKeyTiles;
  static constexpr int kHeld = Tile::kHoldsQueries ? Tile::kSteps + 1 : 1;
  static constexpr float kLog2E = 1.4426950408889634f;

  static __device__ float nothing() { return __uint_as_float(0xff800000u); }  // the score of a hidden key

  struct Place {
    unsigned batch;
    unsigned head;
    unsigned first;  // query of the block
  };

  struct Queries {  // of a warp, as products take them
    uint32_t at[kHeld][4];
  };

  struct Scores {
    float at[kKeyTiles][4];
  };

  struct Rows {  // of a lane: lane / 4 and that plus 8 of the warp's 16
    float top[2] = {nothing(), nothing()};
    float sum[2] = {0.0f, 0.0f};
    float y[Tile::kTiles][4] = {};
  };

  // --- to shared memory ---

  // Rows of a tile, zeros where there are none.
  template <int kRows, int kElements, int kPitch>
  __device__ static void fetch(const T* from, unsigned of_token, unsigned exist, unsigned char* to) {
    constexpr int kPart = Tile::kAccess / 2;  // elements of a copy
    constexpr int kParts = (kElements + 7) / 8 * 8 / kPart;
#pragma unroll 4
    for (int i = threadIdx.x; i < kRows * kParts; i += Tile::kThreads) {
      const unsigned row = i / kParts;
      const unsigned column = i % kParts * kPart;
      const bool inside = row < exist && column < kElements;
      const T* const source = from + (inside ? row * of_token + column : 0);
      unsigned char* const place = to + (row * kPitch + column) * 2;
      if constexpr (Tile::kAccess == 2) {
        *reinterpret_cast<T*>(place) = inside ? *source : T{};
      } else {
        copy_or_zero_async<Tile::kAccess>(place, source, inside);
      }
    }
  }

  __device__ static const T* of(const HeadsOf& x, unsigned batch, unsigned head, unsigned token) {
    return static_cast<const T*>(x.data) + batch * x.of_batch + head * x.of_head +
           static_cast<uint64_t>(token) * x.of_token;
  }

  __device__ static void fetch_queries(const Params& p, const Place& at, unsigned char* to) {
    const T* const from = of(p.q, at.batch, at.head, at.first);
    fetch<Tile::kQueries, Tile::kWidth, Tile::kQueryPitch>(from, p.q.of_token, p.queries - at.first, to);
  }

  __device__ static void fetch_keys(const Params& p, const Place& at, unsigned first, unsigned char* to) {
    const unsigned head = at.head / p.group;
    const unsigned exist = p.keys - first;
    const T* const keys = of(p.k, at.batch, head, first);
    const T* const values = of(p.v, at.batch, head, first);
    fetch<Tile::kKeys, Tile::kWidth, Tile::kPitch>(keys, p.k.of_token, exist, to);
    fetch<Tile::kKeys, Tile::kValues, Tile::kValuePitch>(values, p.v.of_token, exist, to + Tile::kKeyBytes);
  }

  // --- products ---

  __device__ static uint32_t row_of_warp(uint32_t queries) {
    const int lane = threadIdx.x % 32;
    return queries + (threadIdx.x / 32 * 16 + lane % 16) * Tile::kQueryPitch * 2;
  }

  __device__ static void load_step(uint32_t (&a)[4], uint32_t row, int step) {
    if (Tile::kOdd && step == Tile::kSteps) {
      uint32_t half[2];
      load_matrices(half, row + step * 32);
      a[0] = half[0];
      a[1] = half[1];
    } else {
      load_matrices(a, row + step * 32 + threadIdx.x % 32 / 16 * 16);
    }
  }

  __device__ static void hold(uint32_t queries, Queries& held) {
    if constexpr (Tile::kHoldsQueries) {
#pragma unroll
      for (int step = 0; step < Tile::kSteps + Tile::kOdd; ++step) load_step(held.at[step], row_of_warp(queries), step);
    }
  }

  // Scores of the warp's queries and the tile's keys, without the scale.
  __device__ static void score(const Queries& held, uint32_t queries, uint32_t keys, Scores& s) {
    const int lane = threadIdx.x % 32;
    const uint32_t row = keys + ((lane / 16 * 8 + lane % 8) * Tile::kPitch + lane / 8 % 2 * 8) * 2;
    const uint32_t odd_row = keys + lane % 16 * Tile::kPitch * 2;
    s = {};
#pragma unroll
    for (int step = 0; step < Tile::kSteps + Tile::kOdd; ++step) {
      uint32_t a[4];
      if constexpr (Tile::kHoldsQueries) {
#pragma unroll
        for (int e = 0; e < 4; ++e) a[e] = held.at[step][e];
      } else {
        load_step(a, row_of_warp(queries), step);
      }
#pragma unroll
      for (int pair = 0; pair < kKeyTiles / 2; ++pair) {
        float (&first)[4] = s.at[2 * pair];
        float (&second)[4] = s.at[2 * pair + 1];
        if (Tile::kOdd && step == Tile::kSteps) {
          uint32_t b[2];
          const uint32_t half[2] = {a[0], a[1]};
          load_matrices(b, odd_row + (pair * 16 * Tile::kPitch + step * 16) * 2);
          Product<T>::add(first, half, b[0], first);
          Product<T>::add(second, half, b[1], second);
        } else {
          uint32_t b[4];
          load_matrices(b, row + (pair * 16 * Tile::kPitch + step * 16) * 2);
          Product<T>::add(first, a, b[0], b[1], first);
          Product<T>::add(second, a, b[2], b[3], second);
        }
      }
    }
  }

  __device__ static void add_values(const Scores& s, uint32_t values, Rows& rows) {
    const int lane = threadIdx.x % 32;
    const uint32_t row = values + lane % 16 * Tile::kValuePitch * 2;
#pragma unroll
    for (int step = 0; step < kKeyTiles / 2; ++step) {
      const float (&first)[4] = s.at[2 * step];
      const float (&second)[4] = s.at[2 * step + 1];
      const uint32_t a[4] = {narrow_pair<T>(first[0], first[1]), narrow_pair<T>(first[2], first[3]),
                             narrow_pair<T>(second[0], second[1]), narrow_pair<T>(second[2], second[3])};
#pragma unroll
      for (int pair = 0; pair < Tile::kTiles / 2; ++pair) {
        uint32_t b[4];
        load_matrices_transposed(b, row + (step * 16 * Tile::kValuePitch + pair * 16 + lane / 16 * 8) * 2);
        Product<T>::add(rows.y[2 * pair], a, b[0], b[1], rows.y[2 * pair]);
        Product<T>::add(rows.y[2 * pair + 1], a, b[2], b[3], rows.y[2 * pair + 1]);
      }
      if constexpr (Tile::kTiles % 2 != 0) {
        constexpr int kLast = Tile::kTiles - 1;
        uint32_t b[2];
        load_matrices_transposed(b, row + (step * 16 * Tile::kValuePitch + kLast * 8) * 2);
        Product<T>::add(rows.y[kLast], a, b[0], b[1], rows.y[kLast]);
      }
    }
  }

  // --- softmax ---

  __device__ static unsigned query_of_lane(const Place& at) {
    return at.first + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  }

  // What is added to the lane's scores, times log2(e).
  __device__ static void load_bias(const Params& p, const Place& at, unsigned first, Scores& bias) {
    const unsigned query = query_of_lane(at);
    const unsigned key = first + threadIdx.x % 4 * 2;
    const T* const of_head =
        static_cast<const T*>(p.bias) + at.batch % p.bias_period * p.bias_batch + at.head * p.bias_head;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const unsigned row = min(query + 8 * half, p.queries - 1);
      const T* const of_row = of_head + static_cast<uint64_t>(row) * p.bias_query + key;
      const int exist = static_cast<int>(p.keys) - static_cast<int>(key);
#pragma unroll
      for (int j = 0; j < kKeyTiles; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          bias.at[j][2 * half + e] = 8 * j + e < exist ? kLog2E * widen(of_row[8 * j + e]) : nothing();
        }
      }
    }
  }

  // Hides keys that there are none of, and later ones from causal queries.
  __device__ static void hide(const Params& p, const Place& at, unsigned first, Scores& s) {
    const unsigned query = query_of_lane(at);
    const int key = static_cast<int>(first + threadIdx.x % 4 * 2);
    const bool whole = first + Tile::kKeys <= p.keys;
    const bool seen =
        !Op::kCausal || static_cast<int>(first) + Tile::kKeys <= static_cast<int>(at.first) + 1 + p.behind;
    if (whole && seen) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int end = static_cast<int>(p.keys);
      if constexpr (Op::kCausal) end = min(end, static_cast<int>(query) + 8 * half + 1 + p.behind);
#pragma unroll
      for (int j = 0; j < kKeyTiles; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (key + 8 * j + e >= end) s.at[j][2 * half + e] = nothing();
        }
      }
    }
  }

  // Weights in place of scores; what was summed before is scaled to the new largest score. bias: in place of nothing.
  __device__ static void weigh(float scale, Scores& s, Rows& rows) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = s.at[0][2 * half];
#pragma unroll
      for (int j = 0; j < kKeyTiles; ++j) top = ::fmaxf(top, ::fmaxf(s.at[j][2 * half], s.at[j][2 * half + 1]));
      top = ::fmaxf(top, shuffle_xor(top, 1));
      top = ::fmaxf(top, shuffle_xor(top, 2));
      if constexpr (!Op::kBiased) top *= scale;
      top = ::fmaxf(top, rows.top[half]);
      const float base = top == nothing() ? 0.0f : top;
      const float factor = ptx::exp2(rows.top[half] - base);
      rows.top[half] = top;
      float sum = rows.sum[half] * factor;
#pragma unroll
      for (int j = 0; j < kKeyTiles; ++j) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          s.at[j][e] = ptx::exp2(Op::kBiased ? s.at[j][e] - base : ::fmaf(s.at[j][e], scale, -base));
          sum += s.at[j][e];
        }
      }
      rows.sum[half] = sum;
#pragma unroll
      for (int j = 0; j < Tile::kTiles; ++j) {
        rows.y[j][2 * half] *= factor;
        rows.y[j][2 * half + 1] *= factor;
      }
    }
  }

  __device__ static void add_bias(float scale, const Scores& bias, Scores& s) {
#pragma unroll
    for (int j = 0; j < kKeyTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s.at[j][e] = ::fmaf(s.at[j][e], scale, bias.at[j][e]);
    }
  }

  // --- the result ---

  // By way of the warp's queries in shared memory, so that accesses to the result are whole rows of it.
  __device__ static void write(const Params& p, const Place& at, const Rows& rows, unsigned char* queries) {
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    T* const place = reinterpret_cast<T*>(queries) + warp * 16 * Tile::kQueryPitch;
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = rows.sum[half];
      sum += shuffle_xor(sum, 1);
      sum += shuffle_xor(sum, 2);
      const float factor = 1.0f / sum;
      T* const row = place + (lane / 4 + 8 * half) * Tile::kQueryPitch + lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < Tile::kTiles; ++j) {
        *reinterpret_cast<uint32_t*>(row + j * 8) =
            narrow_pair<T>(rows.y[j][2 * half] * factor, rows.y[j][2 * half + 1] * factor);
      }
    }
    __syncwarp();
    constexpr int kPart = Tile::kAccess / 2;
    constexpr int kParts = Tile::kValues / kPart;
    const unsigned first = at.first + warp * 16;
    const uint64_t token = static_cast<uint64_t>(at.batch) * p.queries + first;
    T* const y = static_cast<T*>(p.y) + (token * p.heads + at.head) * Tile::kValues;
    const unsigned of_token = p.heads * Tile::kValues;
#pragma unroll 4
    for (int i = lane; i < 16 * kParts; i += 32) {
      const unsigned row = i / kParts;
      const unsigned column = i % kParts * kPart;
      if (first + row >= p.queries) break;
      const auto part = load_vector<T, kPart>(place + row * Tile::kQueryPitch + column);
      store_vector(y + row * of_token + column, part);
    }
  }

  // --- entry points ---

  __device__ static Place place(const Params& p) {
    const unsigned tile = blockIdx.x % p.tiles;
    const unsigned head = blockIdx.x / p.tiles;
    Place at;
    at.batch = head / p.heads;
    at.head = head - at.batch * p.heads;
    at.first = (Op::kCausal ? p.tiles - 1 - tile : tile) * Tile::kQueries;  // the longest ones first
    return at;
  }

  __device__ static unsigned keys_seen(const Params& p, const Place& at) {
    if constexpr (!Op::kCausal) return p.keys;
    const int end = static_cast<int>(at.first) + Tile::kQueries + p.behind;
    return end <= 0 ? 0 : min(p.keys, static_cast<unsigned>(end));
  }

  // One query, by multiplications and additions alone.
  __device__ static void attend_plainly(const Params& p, const Place& at, unsigned query) {
    constexpr int kOfLane = (Tile::kValues + 31) / 32;
    const unsigned lane = threadIdx.x % 32;
    const T* const q = of(p.q, at.batch, at.head, query);
    const T* const bias = static_cast<const T*>(p.bias) + at.batch % p.bias_period * p.bias_batch +
                          at.head * p.bias_head + static_cast<uint64_t>(query) * p.bias_query;
    int end = static_cast<int>(p.keys);
    if constexpr (Op::kCausal) end = min(end, static_cast<int>(query) + 1 + p.behind);
    float top = nothing();
    float sum = 0.0f;
    float y[kOfLane] = {};
#pragma unroll 1
    for (int first = 0; first < end; first += 32) {
      const int key = first + static_cast<int>(lane);
      float weight = nothing();
      if (key < end) {
        const T* const k = of(p.k, at.batch, at.head / p.group, key);
        float score = 0.0f;
        for (int j = 0; j < Tile::kWidth; ++j) score = ::fmaf(widen(q[j]), widen(k[j]), score);
        weight = score * p.scale;
        if constexpr (Op::kBiased) weight += kLog2E * widen(bias[key]);
      }
      float largest = weight;
      for (int mask = 16; mask > 0; mask /= 2) largest = ::fmaxf(largest, shuffle_xor(largest, mask));
      largest = ::fmaxf(largest, top);
      const float base = largest == nothing() ? 0.0f : largest;
      const float factor = ptx::exp2(top - base);
      top = largest;
      weight = ptx::exp2(weight - base);
      sum = sum * factor + weight;
      for (int c = 0; c < kOfLane; ++c) y[c] *= factor;
      for (int t = 0; t < min(32, end - first); ++t) {
        const float of_key = __shfl_sync(0xffffffffu, weight, t, 32);
        const T* const v = of(p.v, at.batch, at.head / p.group, first + t);
        for (int c = 0; c < kOfLane; ++c) {
          const unsigned column = lane + 32 * c;
          if (column < Tile::kValues) y[c] = ::fmaf(of_key, widen(v[column]), y[c]);
        }
      }
    }
    for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
    const uint64_t token = static_cast<uint64_t>(at.batch) * p.queries + query;
    T* const to = static_cast<T*>(p.y) + (token * p.heads + at.head) * Tile::kValues;
    for (int c = 0; c < kOfLane; ++c) {
      const unsigned column = lane + 32 * c;
      if (column < Tile::kValues) to[column] = Narrow<T>::from(y[c] / sum);
    }
  }

  // Where the GPU has no products of T.
  __device__ static void run_plainly(const Params& p) {
    begin_early();
    for (Place at = place(p); at.batch < p.batch; at.batch += p.step) {
      for (unsigned query = threadIdx.x / 32; query < Tile::kQueries; query += Tile::kWarps) {
        if (at.first + query < p.queries) attend_plainly(p, at, at.first + query);
      }
    }
  }

  static constexpr int kSharedBytes = Tile::kQueryBytes + Tile::kStages * Tile::kStageBytes;

  __device__ static void run(const Params& p) {
    if constexpr (has_products<T>()) {
      run_products(p);
    } else {
      run_plainly(p);
    }
  }

  __device__ static void run_products(const Params& p) {
    unsigned char* const queries = dynamic_shared();
    unsigned char* const stages = queries + Tile::kQueryBytes;
    const Place at = place(p);
    const unsigned keys = keys_seen(p, at);
    begin_early();
    fetch_queries(p, at, queries);
    if (keys > 0) fetch_keys(p, at, 0, stages);
    end_group();
    Queries held;
    Rows rows;
#pragma unroll 1
    for (unsigned first = 0; first < keys; first += Tile::kKeys) {
      const unsigned stage = Tile::kStages == 2 ? first / Tile::kKeys % 2 : 0;
      if (first > 0) __syncthreads();  // all have read what was there before
      if constexpr (Tile::kStages == 1) {
        if (first > 0) fetch_keys(p, at, first, stages);
      } else {
        if (first + Tile::kKeys < keys) {
          fetch_keys(p, at, first + Tile::kKeys, stages + (stage ^ 1) * Tile::kStageBytes);
        }
      }
      if (Tile::kStages == 2 || first > 0) end_group();
      Scores bias;
      if constexpr (Op::kBiased) load_bias(p, at, first, bias);
      wait_for_groups<Tile::kStages - 1>();
      __syncthreads();
      if (first == 0) hold(shared_address(queries), held);
      const uint32_t now = shared_address(stages + stage * Tile::kStageBytes);
      Scores s;
      score(held, shared_address(queries), now, s);
      if constexpr (Op::kBiased) add_bias(p.scale, bias, s);
      hide(p, at, first, s);
      weigh(p.scale, s, rows);
      add_values(s, now + Tile::kKeyBytes, rows);
    }
    wait_for_groups<0>();  // also where no key is seen
    write(p, at, rows, queries);
  }

  static constexpr int kShortBytes = 2 * (Tile::kQueryBytes + Tile::kStageBytes);

  __device__ static void fetch_all(const Params& p, const Place& at, unsigned char* to) {
    fetch_queries(p, at, to);
    fetch_keys(p, at, 0, to + Tile::kQueryBytes);
  }

  // For at least one key and at most kKeys. A block takes one sequence after the other, the next one on its way.
  __device__ static void run_short(const Params& p) {
    if constexpr (has_products<T>()) {
      run_short_products(p);
    } else {
      run_plainly(p);
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
      if (same) load_bias(p, at, 0, bias);
    }
    unsigned turn = 0;
#pragma unroll 1
    for (; at.batch < p.batch; at.batch += p.step, turn ^= 1) {
      unsigned char* const queries = shared + turn * (kShortBytes / 2);
      const Place next = {at.batch + p.step, at.head, at.first};
      if (next.batch < p.batch) fetch_all(p, next, shared + (turn ^ 1) * (kShortBytes / 2));
      end_group();
      if constexpr (Op::kBiased) {
        if (!same) load_bias(p, at, 0, bias);
      }
      wait_for_groups<1>();
      __syncthreads();
      Queries held;
      Rows rows;
      Scores s;
      const uint32_t now = shared_address(queries + Tile::kQueryBytes);
      hold(shared_address(queries), held);
      score(held, shared_address(queries), now, s);
      if constexpr (Op::kBiased) add_bias(p.scale, bias, s);
      hide(p, at, 0, s);
      weigh(p.scale, s, rows);
      add_values(s, now + Tile::kKeyBytes, rows);
      write(p, at, rows, queries);
      __syncthreads();  // all have read what the next but one comes to
    }
  }
};

}  // namespace onnxopt
