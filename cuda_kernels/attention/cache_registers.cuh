// Attention of some rows, at most 8, to a cache of keys and values, under a mask, on the matrix units, which multiply
// keys and values from the registers that they are loaded to. A row is a head of a new token.
//
// Every warp of a block goes through tiles of 16 keys of its own, every so many of all the keys. Lane 4 n + t has
// pieces of keys n and n + 8, of values 2 t, 2 t + 1, 2 t + 8 and 2 t + 9, and of the results of rows 2 t and 2 t + 1.
// Elements of a head are multiplied in the order in which lanes have them, queries in the same one. What a lane has
// multiplied makes room for the next tile's. The rows are the same for all warps, which join what they found at the
// end.
//
// Cache: see cache.cuh.
#pragma once

#include "attention/cache.cuh"
#include "attention/finish_block.cuh"
#include "attention/key_masks.cuh"
#include "device/copy_async.cuh"
#include "device/dynamic_shared.cuh"
#include "device/matrix_words.cuh"
#include "device/ptx.cuh"
#include "device/shuffle.cuh"
#include "device/vector.cuh"

namespace onnxopt {

template <typename T, int kWidth, int kRows, int kThreads, typename Cache>
struct CacheRegisters {
  static constexpr float kLog2E = 1.4426950408889634f;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kOfKey = kWidth / 32;    // pieces of 8 elements that a lane has of a key
  static constexpr int kOfValue = kWidth / 64;  // of a value
  static constexpr int kProducts = kWidth / 16;
  static constexpr int kLaneRows = kRows < 2 ? 1 : 2;
  static constexpr int kFound = kWidth + 4;  // values, the largest score, the sum of weights; a multiple of 16 bytes
  static constexpr unsigned kFreshBytes = 2 * Cache::kMostTokens * kWidth * sizeof(T);
  static constexpr unsigned kBytes = kFreshBytes + kWarps * kRows * kFound * sizeof(float);
  static_assert(kWidth % 64 == 0 && kRows <= 8, "pieces of a lane, and columns of a product");
  using Piece = Vector<T, 8>;
  using Masks = KeyMasks<T, kLaneRows, 2, true>;

  const Cache& cache;
  const unsigned n = threadIdx.x % 32 / 4;
  const unsigned t = threadIdx.x % 4;
  Piece query[kOfKey];
  Piece key[2][kOfKey];
  Piece value[4][kOfValue];
  typename Masks::Rows mask_rows;
  Masks masks;
  float top[kLaneRows];
  float sum[kLaneRows] = {};
  float y[kProducts][4] = {};

  __device__ explicit CacheRegisters(const Cache& cache) : cache(cache) {
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) top[r] = nothing();
  }

  __device__ static float nothing() { return __uint_as_float(0xff800000u); }  // the score of a hidden key

  // A warp's first tile, and from each to the next. Warps of one place in all blocks of a group go side by side.
  __device__ unsigned begin() const { return (threadIdx.x / 32 * cache.splits() + cache.split()) * 16; }
  __device__ unsigned step() const { return 16 * kWarps * cache.splits(); }

  // The place in a tile of the lane's value i.
  __device__ unsigned of_value(int i) const { return 2 * t + i % 2 + i / 2 * 8; }

  // What the cache holds of a key. Keys that it does not hold are the last that it holds, and replaced or hidden.
  __device__ void load_key(int i, unsigned at) {
    const T* const from = cache.past_key(min(at, cache.held() - 1)) + 8 * t;
#pragma unroll
    for (int u = 0; u < kOfKey; ++u) key[i][u] = load_once<T, 8>(from + 32 * u);
  }
  __device__ void load_value(int i, unsigned at) {
    const T* const from = cache.past_value(min(at, cache.held() - 1)) + 8 * n;
#pragma unroll
    for (int u = 0; u < kOfValue; ++u) value[i][u] = load_once<T, 8>(from + 64 * u);
  }

  __device__ void load_keys(unsigned first) {
    if (first >= cache.end) return;
    masks.load(mask_rows, first + n, 8, cache.end);
    if (cache.held() == 0) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) load_key(i, first + n + 8 * i);
  }
  __device__ void load_values(unsigned first) {
    if (first >= cache.end || cache.held() == 0) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) load_value(i, first + of_value(i));
  }

  // --- new tokens ---

  __device__ static T* fresh(int token) { return reinterpret_cast<T*>(dynamic_shared()) + 2 * token * kWidth; }

  // Asks for the new tokens, which come to shared memory.
  __device__ void fetch_new() const {
    constexpr unsigned kPieces = kWidth / 8;
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < 2 * cache.tokens() * kPieces; i += kThreads) {
      const int token = i / kPieces / 2;
      const T* const from = i / kPieces % 2 == 0 ? cache.new_key(token) : cache.new_value(token);
      copy_or_zero_async<16>(fresh(0) + 8 * i, from + i % kPieces * 8, true);
    }
  }

  // Stores them in a cache that is not copied.
  __device__ void keep_new() const {
    constexpr unsigned kPieces = kWidth / 8;
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < 2 * cache.tokens() * kPieces; i += kThreads) {
      const int token = i / kPieces / 2;
      const unsigned at = cache.place_of(token);
      if (cache.new_token(at) != token) continue;
      T* const to = i / kPieces % 2 == 0 ? cache.present_key(at) : cache.present_value(at);
      store_at_once(to + i % kPieces * 8, load_vector<T, 8>(fresh(0) + 8 * i));
    }
  }

  // Puts new tokens in place of what the cache holds. token: which one key threadIdx.x % 16 of the tile is, -1 for
  // none.
  __device__ void replace_keys(int token) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int of_key = shuffle_from(token, n + 8 * i);
      if (of_key < 0) continue;
#pragma unroll
      for (int u = 0; u < kOfKey; ++u) key[i][u] = load_vector<T, 8>(fresh(of_key) + 8 * t + 32 * u);
    }
  }
  __device__ void replace_values(int token) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int of_key = shuffle_from(token, of_value(i));
      if (of_key < 0) continue;
#pragma unroll
      for (int u = 0; u < kOfValue; ++u) value[i][u] = load_vector<T, 8>(fresh(of_key) + kWidth + 8 * n + 64 * u);
    }
  }

  // Stores a tile in a cache that is copied.
  __device__ void keep_keys(unsigned first) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const unsigned at = first + n + 8 * i;
      if (at >= cache.end) break;
      T* const to = cache.present_key(at) + 8 * t;
#pragma unroll
      for (int u = 0; u < kOfKey; ++u) store_at_once(to + 32 * u, key[i][u]);
    }
  }
  __device__ void keep_values(unsigned first) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned at = first + of_value(i);
      if (at >= cache.end) break;
      T* const to = cache.present_value(at) + 8 * n;
#pragma unroll
      for (int u = 0; u < kOfValue; ++u) store_at_once(to + 64 * u, value[i][u]);
    }
  }

  // --- a tile ---

  // Of keys n and n + 8 and rows 2 t and 2 t + 1, without the scale.
  __device__ void score(float (&s)[4]) const {
#pragma unroll
    for (int u = 0; u < kOfKey; ++u) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t a[4] = {word(key[0][u], 2 * half), word(key[1][u], 2 * half), word(key[0][u], 2 * half + 1),
                               word(key[1][u], 2 * half + 1)};
        Product<T>::add(s, a, word(query[u], 2 * half), word(query[u], 2 * half + 1), s);
      }
    }
  }

  // Weights in place of scores; what was summed before is scaled to the new largest score.
  __device__ void weigh(unsigned first, float (&s)[4]) {
    const float scale = cache.scale * kLog2E;
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
      float most = top[r];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& x = s[2 * i + r];
        x = first + n + 8 * i < cache.end ? ::fmaf(x, scale, kLog2E * masks.at(r, i)) : nothing();
        most = ::fmaxf(most, x);
      }
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) most = ::fmaxf(most, shuffle_xor(most, lanes));
      const float base = most == nothing() ? 0.0f : most;
      const float factor = ptx::exp2(top[r] - base);
      top[r] = most;
#pragma unroll
      for (int i = 0; i < 2; ++i) s[2 * i + r] = ptx::exp2(s[2 * i + r] - base);
      sum[r] = sum[r] * factor + s[r] + s[2 + r];
#pragma unroll
      for (int j = 0; j < kProducts; ++j) {
        y[j][r] *= factor;
        y[j][2 + r] *= factor;
      }
    }
  }

  // Element j of the lane's two of the values 2 i and 2 i + 1.
  __device__ uint32_t pair(int i, int j) const {
    const uint32_t low = word(value[2 * i][j / 8], j % 8 / 2);
    const uint32_t high = word(value[2 * i + 1][j / 8], j % 8 / 2);
    return __byte_perm(low, high, j % 2 == 0 ? 0x5410u : 0x7632u);
  }

  __device__ void add_values(const float (&s)[4]) {
    const uint32_t b0 = transposed_matrix(narrow_pair<T>(s[0], s[1]));
    const uint32_t b1 = transposed_matrix(narrow_pair<T>(s[2], s[3]));
#pragma unroll
    for (int j = 0; j < kProducts; ++j) {
      const uint32_t a[4] = {pair(0, j), pair(0, j + kProducts), pair(1, j), pair(1, j + kProducts)};
      Product<T>::add(y[j], a, b0, b1, y[j]);
    }
  }

  // --- all of it ---

  // Asks for the warp's first tile, of which nothing is read: the kernel ahead may write it.
  __device__ void ask_ahead() const { ask_for<kWidth>(cache, begin(), min(begin() + 16, cache.end), 0); }

  // ready: called after the first loads are asked for, before new tokens' places are known.
  template <typename Ready>
  __device__ void attend(Ready ready) {
    mask_rows = Masks::rows_of(cache, min(2 * t, kRows - 1u), 1, kRows - 1);
    load_keys(begin());
    load_values(begin());
#pragma unroll
    for (int u = 0; u < kOfKey; ++u) {
      query[u] = n < kRows ? load_vector<T, 8>(cache.query(min(n, kRows - 1u)) + 8 * t + 32 * u) : Piece{};
    }
    fetch_new();
    ready();
    wait_for_copies();
    __syncthreads();
    const bool copies = cache.writes(-1);
    if (!copies && cache.split() == 0 && cache.writes(0)) keep_new();
#pragma unroll 1
    for (unsigned first = begin(), next = first + step(); first < cache.end; first = next, next += step()) {
      const unsigned at = first + threadIdx.x % 16;
      const int token = at < cache.end ? cache.new_token(at) : -1;
      const bool has_new = any_of_warp(token >= 0);
      if (has_new) replace_keys(token);
      if (copies) keep_keys(first);
      float s[4] = {};
      score(s);
      weigh(first, s);
      load_keys(next);
      if (has_new) replace_values(token);
      if (copies) keep_values(first);
      add_values(s);
      load_values(next);
    }
    place();
    __syncthreads();
    join_warps<CacheRegisters, T, kWidth, kRows, kThreads>(cache);
    join_if_last<T, kWidth, kRows, kThreads>(cache);
  }

  // --- what a block found ---

  // Where a warp puts what it found for a row.
  __device__ static float* found_of(unsigned warp, unsigned row) {
    return reinterpret_cast<float*>(dynamic_shared() + kFreshBytes) + (warp * kRows + row) * kFound;
  }

  __device__ void place() const {
    constexpr float kLn2 = 0.693147181f;
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
      float of_row = sum[r];
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) of_row += shuffle_xor(of_row, lanes);
      const unsigned row = 2 * t + r;
      if (row >= kRows) continue;
      float* const found = found_of(threadIdx.x / 32, row);
#pragma unroll
      for (int j = 0; j < 2 * kProducts; j += 4) {  // elements of the lane
        Vector<float, 4> four;
#pragma unroll
        for (int e = 0; e < 4; ++e) four.at[e] = y[(j + e) % kProducts][(j + e) / kProducts * 2 + r];
        store_vector(found + j / 8 * 64 + 8 * n + j % 8, four);
      }
      if (n == 0) store_vector<float, 2>(found + kWidth, {::fmaxf(top[r] * kLn2, kNoScore), of_row});
    }
  }
};

}  // namespace onnxopt
