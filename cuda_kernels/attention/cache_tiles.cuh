// Attention of some rows, at most 16, to a cache of keys and values, on the matrix units. A row is a head of a new
// token.
//
// Every warp of a block goes through tiles of 16 keys of its own, which come to memory of its own, kStages - 1 of them
// ahead: nothing but the warp waits for them. From there they are stored behind the cache and multiplied. The rows are
// the same for all warps, which join what they found at the end.
//
// Cache: see cache.cuh.
#pragma once

#include "attention/cache.cuh"
#include "attention/key_masks.cuh"
#include "device/copy_async.cuh"
#include "device/dynamic_shared.cuh"
#include "device/matrix_words.cuh"
#include "device/shuffle.cuh"
#include "device/vector.cuh"
#include "flash_attention/products.cuh"
#include "flash_attention/softmax.cuh"

namespace onnxopt {

template <typename T, bool kMasked>
struct CacheOp {  // as FlashSoftmax wants it
  using Stored = T;
  static constexpr bool kBegins = false;
  static constexpr bool kEnds = false;
  static constexpr bool kBiased = kMasked;
  static constexpr bool kCapped = false;
  static constexpr bool kSinks = false;
};

template <typename T, int kWidth, int kRows, int kThreads, int kStages, bool kMasked>
struct CacheTiles {
  using Tile = FlashTile<kWidth, kWidth, 1, 16, kStages == 1 ? 1 : 2, 16>;
  using Products = FlashProducts<T, Tile, true>;
  using Softmax = FlashSoftmax<CacheOp<T, kMasked>, Tile>;
  using Masks = KeyMasks<T, 2, 2, kMasked>;  // of the lane's rows and of two keys in a row
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kParts = kWidth / 8;  // of a row, 16 bytes each
  static constexpr int kOfLane = (16 * kParts + 31) / 32;
  static constexpr int kFound = kWidth + 2;  // values, the largest score, the sum of weights
  static constexpr unsigned kOfWarp = kStages * Tile::kStageBytes;
  static constexpr unsigned kFoundBytes = 16 * kFound * sizeof(float);
  static constexpr unsigned kBytes = Tile::kQueryBytes + kWarps * (kOfWarp > kFoundBytes ? kOfWarp : kFoundBytes);
  static_assert(kRows <= 16, "rows of a product");

  __device__ static unsigned char* of_warp(unsigned warp) {
    return dynamic_shared() + Tile::kQueryBytes + warp * (kOfWarp > kFoundBytes ? kOfWarp : kFoundBytes);
  }

  // The rows' queries in shared memory, zeros behind the last.
  template <typename Cache>
  __device__ static void place_queries(const Cache& cache) {
    for (int i = threadIdx.x; i < 16 * kParts; i += kThreads) {
      const int row = i / kParts;
      Vector<T, 8> part = {};
      if (row < kRows) part = load_vector<T, 8>(cache.query(row) + i % kParts * 8);
      store_vector(reinterpret_cast<T*>(dynamic_shared()) + row * Tile::kQueryPitch + i % kParts * 8, part);
    }
  }

  // Asks for a tile of keys and values. Keys that are not there are zeros: their weights of 0 multiply them.
  template <typename Cache>
  __device__ static void fetch(const Cache& cache, unsigned first, unsigned char* to) {
#pragma unroll
    for (int u = 0; u < kOfLane; ++u) {
      const unsigned i = threadIdx.x % 32 + 32 * u;
      const unsigned row = i / kParts;
      if (first >= cache.end || (16 * kParts % 32 != 0 && row >= 16)) break;
      const unsigned column = i % kParts * 8;
      const bool exists = first + row < cache.end;
      const unsigned at = exists ? first + row : cache.begin;
      const int token = cache.new_token(at);
      unsigned char* const place = to + (row * Tile::kPitch + column) * 2;
      const T* const key = token < 0 ? cache.past_key(at) : cache.new_key(token);
      const T* const value = token < 0 ? cache.past_value(at) : cache.new_value(token);
      copy_or_zero_async<16>(place, key + column, exists);
      copy_or_zero_async<16>(place + Tile::kKeyBytes, value + column, exists);
    }
    end_group();
  }

  // Stores the tile's keys and values that the cache does not hold yet.
  template <typename Cache>
  __device__ static void keep(const Cache& cache, unsigned first, const unsigned char* from) {
#pragma unroll
    for (int u = 0; u < kOfLane; ++u) {
      const unsigned i = threadIdx.x % 32 + 32 * u;
      const unsigned row = i / kParts;
      const unsigned column = i % kParts * 8;
      const unsigned at = first + row;
      if ((16 * kParts % 32 != 0 && row >= 16) || at >= cache.end || !cache.writes(cache.new_token(at))) continue;
      const T* const place = reinterpret_cast<const T*>(from) + row * Tile::kPitch + column;
      store_at_once(cache.present_key(at) + column, load_vector<T, 8>(place));
      store_at_once(cache.present_value(at) + column, load_vector<T, 8>(place + Tile::kKeyBytes / 2));
    }
  }

  // Scores of the lane, of rows lane / 4 and that plus 8, as Softmax::weigh takes them.
  __device__ static void finish(const Masks (&masks)[Tile::kKeyTiles], unsigned first, unsigned end, float scale,
                                typename Products::Scores& s) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < Tile::kKeyTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if constexpr (kMasked) s.at[j][e] = ::fmaf(s.at[j][e], scale, kFlashLog2E * masks[j].at(e / 2, e % 2));
        if (first + 8 * j + lane % 4 * 2 + e % 2 >= end) s.at[j][e] = Softmax::nothing();
      }
    }
  }

  // The masks of a tile.
  __device__ static void load_masks(const typename Masks::Rows& rows, unsigned first, unsigned end,
                                    Masks (&masks)[Tile::kKeyTiles]) {
#pragma unroll
    for (int j = 0; j < Tile::kKeyTiles; ++j) masks[j].load(rows, first + 8 * j + threadIdx.x % 4 * 2, 1, end);
  }

  template <typename Cache>
  __device__ static void attend(const Cache& cache, float* parts) {
    const unsigned warp = threadIdx.x / 32;
    constexpr unsigned kStep = 16 * kWarps;
    unsigned char* const mine = of_warp(warp);
    const float scale = cache.scale * kFlashLog2E;
    unsigned next = cache.begin + warp * 16;  // to be fetched
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage, next += kStep) {
      fetch(cache, next, mine + stage * Tile::kStageBytes);
    }
    place_queries(cache);
    __syncthreads();
    typename Products::Queries held;
    typename Softmax::Rows rows;
    const uint32_t queries = shared_address(dynamic_shared());
    Products::hold(queries, held);
    const typename Masks::Rows mask_rows = Masks::rows_of(cache, threadIdx.x % 32 / 4, 8, kRows - 1);
    Masks next_masks[Tile::kKeyTiles];  // of the tile ahead
    load_masks(mask_rows, cache.begin + warp * 16, cache.end, next_masks);
    unsigned stage = 0;
#pragma unroll 1
    for (unsigned first = cache.begin + warp * 16; first < cache.end; first += kStep, next += kStep) {
      if constexpr (kStages == 1) {
        __syncwarp();
        fetch(cache, next, mine);
        wait_for_groups<0>();
        __syncwarp();
      } else {
        wait_for_groups<kStages - 2>();
        __syncwarp();  // what all lanes have asked for is there, and all have read the tile before
        fetch(cache, next, mine + (stage == 0 ? kStages - 1 : stage - 1) * Tile::kStageBytes);
      }
      Masks masks[Tile::kKeyTiles];
#pragma unroll
      for (int j = 0; j < Tile::kKeyTiles; ++j) masks[j] = next_masks[j];
      load_masks(mask_rows, first + kStep, cache.end, next_masks);
      unsigned char* const tile = mine + stage * Tile::kStageBytes;
      keep(cache, first, tile);
      typename Products::Scores s;
      Products::score(held, queries, shared_address(tile), s);
      finish(masks, first, cache.end, scale, s);
      Softmax::weigh(scale, s, rows);
      Products::add_values(s, shared_address(tile) + Tile::kKeyBytes, rows.y);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    wait_for_groups<0>();
    store(rows, mine, parts);
  }

  // Joins what the warps of a block found, and writes it to the block's place in `all_parts`.
  __device__ static void store(const typename Softmax::Rows& rows, unsigned char* mine, float* all_parts) {
    constexpr float kLn2 = 0.693147181f;
    const unsigned lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = rows.sum[half];
      sum += shuffle_xor(sum, 1);
      sum += shuffle_xor(sum, 2);
      float* const part = reinterpret_cast<float*>(mine) + (lane / 4 + 8 * half) * kFound;
#pragma unroll
      for (int j = 0; j < Tile::kTiles; ++j) {
        part[8 * j + lane % 4 * 2] = rows.y[j][2 * half];
        part[8 * j + lane % 4 * 2 + 1] = rows.y[j][2 * half + 1];
      }
      if (lane % 4 == 0) {
        part[kWidth] = ::fmaxf(rows.top[half] * kLn2, kNoScore);
        part[kWidth + 1] = sum;
      }
    }
    __syncthreads();
    float* const parts = all_parts + static_cast<uint64_t>(blockIdx.x) * kRows * kFound;
    for (unsigned i = threadIdx.x; i < kRows * kWidth; i += kThreads) {
      const unsigned row = i / kWidth;
      const unsigned column = i % kWidth;
      const auto found = [&](int w) { return reinterpret_cast<const float*>(of_warp(w)) + row * kFound; };
      float top = kNoScore;
      for (int w = 0; w < kWarps; ++w) top = ::fmaxf(top, found(w)[kWidth]);
      float sum = 0.0f;
      float value = 0.0f;
      for (int w = 0; w < kWarps; ++w) {
        const float factor = ptx::exp2((found(w)[kWidth] - top) * kFlashLog2E);
        sum += factor * found(w)[kWidth + 1];
        value += factor * found(w)[column];
      }
      float* const part = parts + row * kFound;
      part[column] = value;
      if (column == 0) {
        part[kWidth] = top;
        part[kWidth + 1] = sum;
      }
    }
  }
};

}  // namespace onnxopt
