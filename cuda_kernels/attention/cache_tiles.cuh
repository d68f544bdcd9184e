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
#include "attention/tile_masks.cuh"
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
  using Masks = TileMasks<T, kRows, 16, kMasked>;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kParts = kWidth / 8;  // of a row, 16 bytes each
  static constexpr int kOfLane = (16 * kParts + 31) / 32;
  static constexpr int kFound = kWidth + 2;  // values, the largest score, the sum of weights
  static constexpr unsigned kOfStage = Tile::kStageBytes + Masks::kBytes;
  static constexpr unsigned kOfWarp = kStages * kOfStage;
  static constexpr unsigned kFoundBytes = 16 * kFound * sizeof(float);
  static constexpr unsigned kBytes = Tile::kQueryBytes + kWarps * (kOfWarp > kFoundBytes ? kOfWarp : kFoundBytes);
  static_assert(kRows <= 16, "rows of a product");

  __device__ static unsigned char* of_warp(unsigned warp) {
    return dynamic_shared() + Tile::kQueryBytes + warp * (kOfWarp > kFoundBytes ? kOfWarp : kFoundBytes);
  }

  // Where a lane's piece lies in a tile in shared memory, in bytes.
  __device__ static unsigned place_of(int u) {
    const unsigned lane = threadIdx.x % 32;
    if constexpr (32 % kParts == 0) {
      return ((lane / kParts + u * (32 / kParts)) * Tile::kPitch + lane % kParts * 8) * 2;
    }
    const unsigned i = lane + 32 * u;
    return (i / kParts * Tile::kPitch + i % kParts * 8) * 2;
  }

  // Whether a lane has a piece u of a tile.
  __device__ static bool has_piece(int u) {
    return 16 * kParts % 32 == 0 || threadIdx.x % 32 + 32 * u < static_cast<unsigned>(16 * kParts);
  }

  // Whether all keys of a tile are there, and none of them is a new token: they lie one behind the other in the cache.
  template <typename Cache>
  __device__ static bool is_whole(const Cache& cache, unsigned first) {
    return first + 16 <= cache.end && !cache.holds_new(first, first + 16);
  }

  // Asks for the rows' queries, and zeros behind the last.
  template <typename Cache>
  __device__ static void fetch_queries(const Cache& cache) {
    for (int i = threadIdx.x; i < 16 * kParts; i += kThreads) {
      const int row = i / kParts;
      unsigned char* const place = dynamic_shared() + (row * Tile::kQueryPitch + i % kParts * 8) * 2;
      copy_or_zero_async<16>(place, cache.query(min(row, kRows - 1)) + i % kParts * 8, row < kRows);
    }
    end_group();
  }

  // Asks for a tile of keys and values.
  template <typename Cache>
  __device__ static void fetch(const Cache& cache, const Masks& masks, unsigned first, unsigned char* to) {
    if (first < cache.end) {
      masks.fetch(first, cache.end, to + Tile::kStageBytes);
      if (is_whole(cache, first)) {
        const T* const key = cache.past_key(first) + threadIdx.x % 32 * 8;
        const T* const value = cache.past_value(first) + threadIdx.x % 32 * 8;
#pragma unroll
        for (int u = 0; u < kOfLane; ++u) {
          if (!has_piece(u)) break;
          copy_or_zero_async<16>(to + place_of(u), key + 256 * u, true);
          copy_or_zero_async<16>(to + Tile::kKeyBytes + place_of(u), value + 256 * u, true);
        }
      } else {
        fetch_any(cache, first, to);
      }
    }
    end_group();
  }

  // The same for tiles with new tokens, or with keys that are not there: these are zeros, which weights of 0 multiply.
  template <typename Cache>
  __device__ static void fetch_any(const Cache& cache, unsigned first, unsigned char* to) {
#pragma unroll 1
    for (int u = 0; u < kOfLane; ++u) {
      if (!has_piece(u)) break;
      const unsigned i = threadIdx.x % 32 + 32 * u;
      const unsigned column = i % kParts * 8;
      const bool exists = first + i / kParts < cache.end;
      const unsigned at = exists ? first + i / kParts : cache.begin;
      const int token = cache.new_token(at);
      const T* const key = token < 0 ? cache.past_key(at) : cache.new_key(token);
      const T* const value = token < 0 ? cache.past_value(at) : cache.new_value(token);
      copy_or_zero_async<16>(to + place_of(u), key + column, exists);
      copy_or_zero_async<16>(to + Tile::kKeyBytes + place_of(u), value + column, exists);
    }
  }

  __device__ static Vector<T, 8> piece(const unsigned char* from, int u) {
    return load_vector<T, 8>(reinterpret_cast<const T*>(from + place_of(u)));
  }

  // Stores the tile's keys and values that the cache does not hold yet.
  template <typename Cache>
  __device__ static void keep(const Cache& cache, unsigned first, const unsigned char* from) {
    if (!is_whole(cache, first)) {
      keep_any(cache, first, from);
    } else if (cache.writes(-1)) {
      T* const key = cache.present_key(first) + threadIdx.x % 32 * 8;
      T* const value = cache.present_value(first) + threadIdx.x % 32 * 8;
#pragma unroll
      for (int u = 0; u < kOfLane; ++u) {
        if (!has_piece(u)) break;
        store_at_once(key + 256 * u, piece(from, u));
        store_at_once(value + 256 * u, piece(from + Tile::kKeyBytes, u));
      }
    }
  }

  template <typename Cache>
  __device__ static void keep_any(const Cache& cache, unsigned first, const unsigned char* from) {
#pragma unroll 1
    for (int u = 0; u < kOfLane; ++u) {
      if (!has_piece(u)) break;
      const unsigned i = threadIdx.x % 32 + 32 * u;
      const unsigned column = i % kParts * 8;
      const unsigned at = first + i / kParts;
      if (at >= cache.end || !cache.writes(cache.new_token(at))) continue;
      store_at_once(cache.present_key(at) + column, piece(from, u));
      store_at_once(cache.present_value(at) + column, piece(from + Tile::kKeyBytes, u));
    }
  }

  // Scores of the lane, of rows lane / 4 and that plus 8, as Softmax::weigh takes them. fetched: the masks.
  __device__ static void finish(const Masks& masks, const unsigned char* fetched, unsigned left, float scale,
                                typename Products::Scores& s) {
    const unsigned key = threadIdx.x % 4 * 2;
    if constexpr (kMasked) {
#pragma unroll
      for (int j = 0; j < Tile::kKeyTiles; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          s.at[j][e] = ::fmaf(s.at[j][e], scale, kFlashLog2E * masks.at(fetched, e / 2, 8 * j + key + e % 2));
        }
      }
    }
    if (left >= 16) return;
#pragma unroll
    for (int j = 0; j < Tile::kKeyTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (8 * j + key + e % 2 >= left) s.at[j][e] = Softmax::nothing();
      }
    }
  }

  template <typename Cache>
  __device__ static void attend(const Cache& cache, float* parts) {
    const unsigned warp = threadIdx.x / 32;
    constexpr unsigned kStep = 16 * kWarps;
    unsigned char* const mine = of_warp(warp);
    const float scale = cache.scale * kFlashLog2E;
    fetch_queries(cache);
    const Masks masks(cache);
    unsigned next = cache.begin + warp * 16;  // to be fetched
#pragma unroll 1
    for (int stage = 0; stage < kStages - 1; ++stage, next += kStep) fetch(cache, masks, next, mine + stage * kOfStage);
    wait_for_groups<kStages - 1>();
    __syncthreads();  // the queries are there
    typename Products::Queries held;
    typename Softmax::Rows rows;
    const uint32_t queries = shared_address(dynamic_shared());
    Products::hold(queries, held);
    unsigned stage = 0;
#pragma unroll 1
    for (unsigned first = cache.begin + warp * 16; first < cache.end; first += kStep, next += kStep) {
      if constexpr (kStages == 1) {
        __syncwarp();
        fetch(cache, masks, next, mine);
        wait_for_groups<0>();
        __syncwarp();
      } else {
        wait_for_groups<kStages - 2>();
        __syncwarp();  // what all lanes have asked for is there, and all have read the tile before
        fetch(cache, masks, next, mine + (stage == 0 ? kStages - 1 : stage - 1) * kOfStage);
      }
      unsigned char* const tile = mine + stage * kOfStage;
      keep(cache, first, tile);
      typename Products::Scores s;
      Products::score(held, queries, shared_address(tile), s);
      finish(masks, tile + Tile::kStageBytes, cache.end - first, scale, s);
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
