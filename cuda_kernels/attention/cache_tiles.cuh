// Attention of some rows, at most 16, to a cache of keys and values, on the matrix units. A row is a head of a new
// token.
//
// Every warp of a block goes through tiles of 16 keys of its own, every so many of all the keys, which come to memory
// of its own, kStages - 1 of them ahead: nothing but the warp waits for them. From there they are stored behind the
// cache and multiplied, codes after they became numbers. The rows are the same for all warps, which join what they
// found at the end.
//
// Cache: see cache.cuh.
#pragma once

#include "attention/cache.cuh"
#include "attention/finish_block.cuh"
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
  static constexpr bool kHiddenWeighOnce = false;
  static constexpr bool kHiddenWeighWindow = false;
  static constexpr bool kCapped = false;
  static constexpr bool kSinks = false;
};

// Of keys and values as new tokens are, which products read where they come to; cache_codes.cuh has one of codes.
template <typename T, int kWidth>
struct SameTiles {
  using Tile = FlashTile<kWidth, kWidth, 1, 16, 2, 16>;
  using Code = T;
  struct Scales {};
  enum : int {
    kPitch = Tile::kPitch * static_cast<int>(sizeof(T)),  // bytes from a key to the next
    kKeyBytes = Tile::kKeyBytes,
    kStageBytes = Tile::kStageBytes,
    kNumberBytes = 0,  // of a warp, beside its stages
  };

  __device__ SameTiles(const Scales&, unsigned) {}

  // Brings a piece of a new token's key and value to a tile.
  __device__ static void add_new(const T* key, const T* value, unsigned char* key_to, unsigned char* value_to) {
    copy_or_zero_async<16>(key_to, key, true);
    copy_or_zero_async<16>(value_to, value, true);
  }

  // Where products read a tile.
  __device__ static const unsigned char* numbers(const unsigned char* tile, unsigned char*) { return tile; }
};

template <typename T, int kWidth, int kRows, int kThreads, int kStages, bool kMasked,
          typename Codes = SameTiles<T, kWidth>>
struct CacheTiles {
  using Tile = FlashTile<kWidth, kWidth, 1, 16, 2, 16>;
  using Code = typename Codes::Code;
  using Scales = typename Codes::Scales;
  using Products = FlashProducts<T, Tile, true>;
  using Softmax = FlashSoftmax<CacheOp<T, kMasked>, Tile>;
  using Masks = TileMasks<T, kRows, 16, kMasked>;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kPiece = 16 / sizeof(Code);  // elements that are copied at once
  static constexpr int kParts = kWidth / kPiece;    // of a key
  static constexpr int kOfLane = (16 * kParts + 31) / 32;
  static constexpr int kFound = kWidth + 2;  // values, the largest score, the sum of weights
  static constexpr unsigned kOfStage = Codes::kStageBytes + Masks::kBytes;
  static constexpr unsigned kOfWarp = kStages * kOfStage + Codes::kNumberBytes;
  static constexpr unsigned kFoundBytes = 16 * kFound * sizeof(float);
  static constexpr unsigned kBytes = Tile::kQueryBytes + kWarps * (kOfWarp > kFoundBytes ? kOfWarp : kFoundBytes);
  static_assert(kRows <= 16, "rows of a product");

  __device__ static unsigned char* of_warp(unsigned warp) {
    return dynamic_shared() + Tile::kQueryBytes + warp * (kOfWarp > kFoundBytes ? kOfWarp : kFoundBytes);
  }

  // Where a lane's piece lies in a stage, in bytes.
  __device__ static unsigned place_of(int u) {
    const unsigned lane = threadIdx.x % 32;
    if constexpr (32 % kParts == 0) {
      return (lane / kParts + u * (32 / kParts)) * Codes::kPitch + lane % kParts * 16;
    }
    const unsigned i = lane + 32 * u;
    return i / kParts * Codes::kPitch + i % kParts * 16;
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
    for (int i = threadIdx.x; i < 16 * (kWidth / 8); i += kThreads) {
      const int row = i / (kWidth / 8);
      const int column = i % (kWidth / 8) * 8;
      unsigned char* const place = dynamic_shared() + (row * Tile::kQueryPitch + column) * 2;
      copy_or_zero_async<16>(place, cache.query(min(row, kRows - 1)) + column, row < kRows);
    }
    end_group();
  }

  // Asks for a tile of keys and values.
  template <typename Cache>
  __device__ static void fetch(const Cache& cache, const Codes& codes, const Masks& masks, unsigned first,
                               unsigned char* to) {
    if (first < cache.end) {
      masks.fetch(first, cache.end, to + Codes::kStageBytes);
      if (is_whole(cache, first)) {
        const Code* const key = cache.past_key(first) + threadIdx.x % 32 * kPiece;
        const Code* const value = cache.past_value(first) + threadIdx.x % 32 * kPiece;
#pragma unroll
        for (int u = 0; u < kOfLane; ++u) {
          if (!has_piece(u)) break;
          copy_or_zero_async<16>(to + place_of(u), key + 32 * kPiece * u, true);
          copy_or_zero_async<16>(to + Codes::kKeyBytes + place_of(u), value + 32 * kPiece * u, true);
        }
      } else {
        fetch_any(cache, codes, first, to);
      }
    }
    end_group();
  }

  // The same for tiles with new tokens, or with keys that are not there: these are zeros, which weights of 0 multiply.
  template <typename Cache>
  __device__ static void fetch_any(const Cache& cache, const Codes& codes, unsigned first, unsigned char* to) {
#pragma unroll 1
    for (int u = 0; u < kOfLane; ++u) {
      if (!has_piece(u)) break;
      const unsigned i = threadIdx.x % 32 + 32 * u;
      const unsigned column = i % kParts * kPiece;
      const bool exists = first + i / kParts < cache.end;
      const unsigned at = exists ? first + i / kParts : cache.begin;
      const int token = cache.new_token(at);
      unsigned char* const place = to + place_of(u);
      if (exists && token >= 0) {
        codes.add_new(cache.new_key(token) + column, cache.new_value(token) + column, place, place + Codes::kKeyBytes);
      } else {
        copy_or_zero_async<16>(place, cache.past_key(at) + column, exists);
        copy_or_zero_async<16>(place + Codes::kKeyBytes, cache.past_value(at) + column, exists);
      }
    }
  }

  __device__ static Vector<Code, kPiece> piece(const unsigned char* from, int u) {
    return load_vector<Code, kPiece>(reinterpret_cast<const Code*>(from + place_of(u)));
  }

  // Stores the tile's keys and values that the cache does not hold yet.
  template <typename Cache>
  __device__ static void keep(const Cache& cache, unsigned first, const unsigned char* from) {
    if (!is_whole(cache, first)) {
      keep_any(cache, first, from);
    } else if (cache.writes(-1)) {
      Code* const key = cache.present_key(first) + threadIdx.x % 32 * kPiece;
      Code* const value = cache.present_value(first) + threadIdx.x % 32 * kPiece;
#pragma unroll
      for (int u = 0; u < kOfLane; ++u) {
        if (!has_piece(u)) break;
        store_at_once(key + 32 * kPiece * u, piece(from, u));
        store_at_once(value + 32 * kPiece * u, piece(from + Codes::kKeyBytes, u));
      }
    }
  }

  template <typename Cache>
  __device__ static void keep_any(const Cache& cache, unsigned first, const unsigned char* from) {
#pragma unroll 1
    for (int u = 0; u < kOfLane; ++u) {
      if (!has_piece(u)) break;
      const unsigned i = threadIdx.x % 32 + 32 * u;
      const unsigned column = i % kParts * kPiece;
      const unsigned at = first + i / kParts;
      if (at >= cache.end || !cache.writes(cache.new_token(at))) continue;
      store_at_once(cache.present_key(at) + column, piece(from, u));
      store_at_once(cache.present_value(at) + column, piece(from + Codes::kKeyBytes, u));
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

  // A warp's first tile, and from each to the next. Warps of one place in all blocks of a group go side by side.
  template <typename Cache>
  __device__ static unsigned first_of(const Cache& cache) {
    return (threadIdx.x / 32 * cache.splits() + cache.split()) * 16;
  }
  template <typename Cache>
  __device__ static unsigned step_of(const Cache& cache) {
    return 16 * kWarps * cache.splits();
  }

  // Asks for the first tiles of a warp.
  template <typename Cache>
  __device__ static void ask_ahead(const Cache& cache) {
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) {
      const unsigned first = first_of(cache) + stage * step_of(cache);
      ask_for<kWidth>(cache, first, min(first + 16, cache.end), 2 * stage);
    }
  }

  template <typename Cache>
  __device__ static void attend(const Cache& cache, const Scales& scales) {
    const unsigned step = step_of(cache);
    unsigned char* const mine = of_warp(threadIdx.x / 32);
    const float scale = cache.scale * kFlashLog2E;
    fetch_queries(cache);
    const Masks masks(cache);
    const Codes codes(scales, cache.group);
    unsigned next = first_of(cache);  // to be fetched
#pragma unroll 1
    for (int stage = 0; stage < kStages - 1; ++stage, next += step)
      fetch(cache, codes, masks, next, mine + stage * kOfStage);
    wait_for_groups<kStages - 1>();
    __syncthreads();  // the queries are there
    typename Products::Queries held;
    typename Softmax::Rows rows[1];
    const uint32_t queries = shared_address(dynamic_shared());
    Products::hold(queries, held);
    unsigned stage = 0;
#pragma unroll 1
    for (unsigned first = first_of(cache); first < cache.end; first += step, next += step) {
      if constexpr (kStages == 1) {
        __syncwarp();
        fetch(cache, codes, masks, next, mine);
        wait_for_groups<0>();
        __syncwarp();
      } else {
        wait_for_groups<kStages - 2>();
        __syncwarp();  // what all lanes have asked for is there, and all have read the tile before
        fetch(cache, codes, masks, next, mine + (stage == 0 ? kStages - 1 : stage - 1) * kOfStage);
      }
      const unsigned char* const tile = mine + stage * kOfStage;
      keep(cache, first, tile);
      const uint32_t numbers = shared_address(codes.numbers(tile, mine + kStages * kOfStage));
      typename Products::Scores s[1];
      Products::score(held, queries, numbers, s);
      finish(masks, tile + Codes::kStageBytes, cache.end - first, scale, s[0]);
      Softmax::template weigh<kMasked>(scale, s[0], rows[0]);
      Products::add_values(s, numbers + Tile::kKeyBytes, rows);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    wait_for_groups<0>();
    place(rows[0]);
    __syncthreads();
    join_warps<CacheTiles, T, kWidth, kRows, kThreads>(cache);
    join_if_last<T, kWidth, kRows, kThreads>(cache);
  }

  // Where a warp puts what it found for a row.
  __device__ static float* found_of(unsigned warp, unsigned row) {
    return reinterpret_cast<float*>(of_warp(warp)) + row * kFound;
  }

  __device__ static void place(const typename Softmax::Rows& rows) {
    constexpr float kLn2 = 0.693147181f;
    const unsigned lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (8 * half >= kRows) break;
      float sum = rows.sum[half];
      sum += shuffle_xor(sum, 1);
      sum += shuffle_xor(sum, 2);
      const unsigned row = lane / 4 + 8 * half;
      if (row >= kRows) continue;
      float* const found = found_of(threadIdx.x / 32, row);
#pragma unroll
      for (int j = 0; j < Tile::kTiles; ++j) {
        store_vector<float, 2>(found + 8 * j + lane % 4 * 2, {rows.y[j][2 * half], rows.y[j][2 * half + 1]});
      }
      if (lane % 4 == 0) store_vector<float, 2>(found + kWidth, {::fmaxf(rows.top[half] * kLn2, kNoScore), sum});
    }
  }
};

}  // namespace onnxopt
