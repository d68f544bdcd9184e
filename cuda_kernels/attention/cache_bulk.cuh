// Attention of few rows to a long cache in one buffer: each warp has stages in shared memory, which bulk copies fill
// ahead. As many keys are on their way as a multiprocessor has room for, and registers hold none of them.
//
// A stage has some keys and their values, as the cache has them. A lane has two pieces of a key, of 16 bytes each. A
// new token is not read from the cache, where its place may hold anything, but stored there.
#pragma once

#include "attention/cache.cuh"
#include "attention/cache_lanes.cuh"
#include "attention/key_masks.cuh"
#include "device/copy_bulk.cuh"
#include "device/dynamic_shared.cuh"

namespace onnxopt {

template <typename T, int kWidth, int kRows, int kThreads, int kStages>
struct CacheBulk {
  enum : int {
    kPiece = 16 / sizeof(T),
    kPieces = 2,  // of a key, for each lane
    kVector = kPiece * kPieces,
    kLanes = kWidth / kVector,
    kGroups = 32 / kLanes,
    kUnroll = 4,
    kKeys = kGroups * kUnroll,  // of a stage
    kWarps = kThreads / 32,
    kTileBytes = kKeys * kWidth * static_cast<int>(sizeof(T)),
    kStageBytes = 2 * kTileBytes,
    kStep = kWarps * kKeys,
    kFound = kWidth + 2,
  };
  static_assert(kLanes >= 1 && kLanes <= 32 && (kLanes & (kLanes - 1)) == 0, "a key's lanes are a part of a warp");
  using Masks = KeyMasks<T, kRows, kUnroll, true>;
  using Piece = Vector<T, kPiece>;
  using Query = float[kRows][kVector];
  using Found = Attended<kVector>[kRows];

  // Where a lane's piece lies in a key. Neighbouring lanes have neighbouring pieces.
  __device__ static unsigned part(int piece) { return (piece * kLanes + threadIdx.x % kLanes) * kPiece; }

  // The keys of a stage that a lane attends to. kNew: whether new tokens may be among them.
  template <bool kNew>
  struct Stage {
    const T* keys;
    const T* values;
    int token[kUnroll];  // which new token a key is; -1 for none
    bool valid[kUnroll];
  };

  template <bool kNew, typename Cache>
  __device__ static Stage<kNew> stage_at(const Cache& cache, unsigned first, const unsigned char* tile) {
    const unsigned group = threadIdx.x % 32 / kLanes;
    Stage<kNew> stage;
    stage.keys = reinterpret_cast<const T*>(tile) + group * kWidth;
    stage.values = stage.keys + kTileBytes / sizeof(T);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const unsigned at = first + u * kGroups + group;
      stage.valid[u] = at < cache.end;
      stage.token[u] = kNew && stage.valid[u] ? cache.new_token(at) : -1;
    }
    return stage;
  }

  template <bool kNew, typename Cache>
  __device__ static Piece key(const Cache& cache, const Stage<kNew>& stage, int u, int piece) {
    if (kNew && stage.token[u] >= 0) return load_vector<T, kPiece>(cache.new_key(stage.token[u]) + part(piece));
    return load_vector<T, kPiece>(stage.keys + u * kGroups * kWidth + part(piece));
  }

  template <bool kNew, typename Cache>
  __device__ static Piece value(const Cache& cache, const Stage<kNew>& stage, int u, int piece) {
    if (kNew && stage.token[u] >= 0) return load_vector<T, kPiece>(cache.new_value(stage.token[u]) + part(piece));
    return load_vector<T, kPiece>(stage.values + u * kGroups * kWidth + part(piece));
  }

  // Stores the new tokens of a stage in the cache.
  template <typename Cache>
  __device__ static void keep(const Cache& cache, unsigned first, const Stage<true>& stage) {
    const unsigned group = threadIdx.x % 32 / kLanes;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (stage.token[u] < 0 || !cache.writes(stage.token[u])) continue;
      const unsigned at = first + u * kGroups + group;
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        store_at_once(cache.present_key(at) + part(p), key(cache, stage, u, p));
        store_at_once(cache.present_value(at) + part(p), value(cache, stage, u, p));
      }
    }
  }

  // Adds the keys of a stage to what each row attends to. Every lane of the warp takes part; keys that are not valid
  // count nothing.
  template <bool kNew, typename Cache>
  __device__ static void add(const Cache& cache, const Stage<kNew>& stage, const Query& query, const Masks& masks,
                             Found& attended) {
    float score[kRows][kUnroll] = {};
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        const Piece words = key(cache, stage, u, p);
#pragma unroll
        for (int j = 0; j < kPiece; ++j) {
          const float element = widen(words.at[j]);
#pragma unroll
          for (int r = 0; r < kRows; ++r) score[r][u] += query[r][p * kPiece + j] * element;
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) weigh(score[r], r, stage.valid, masks, attended[r]);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (!stage.valid[u]) continue;
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        const Piece words = value(cache, stage, u, p);
#pragma unroll
        for (int j = 0; j < kPiece; ++j) {
          const float element = widen(words.at[j]);
#pragma unroll
          for (int r = 0; r < kRows; ++r) attended[r].value[p * kPiece + j] += score[r][u] * element;
        }
      }
    }
  }

  // Turns a row's parts of scores into weights.
  __device__ static void weigh(float (&score)[kUnroll], int row, const bool (&valid)[kUnroll], const Masks& masks,
                               Attended<kVector>& attended) {
    float top = attended.top;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) score[u] += shuffle_xor(score[u], lanes);
      score[u] += masks.at(row, u);
      if (valid[u] && !(score[u] <= top)) top = score[u];  // NaN shows
    }
    attended.scale_to(top);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      score[u] = valid[u] ? exp(score[u] - top) : 0.0f;
      attended.sum += score[u];
    }
  }

  template <typename Cache>
  __device__ static void fetch(const Cache& cache, unsigned first, unsigned char* tile, CopyBarrier& barrier) {
    if (first >= cache.end || threadIdx.x % 32 != 0) return;
    const unsigned keys = min(cache.end - first, static_cast<unsigned>(kKeys));
    const unsigned bytes = keys * kWidth * static_cast<unsigned>(sizeof(T));
    barrier.expect(2 * bytes);
    barrier.copy(tile, cache.past_key(first), bytes);
    barrier.copy(tile + kTileBytes, cache.past_value(first), bytes);
  }

  template <typename Cache>
  __device__ static void load_queries(const Cache& cache, Query& query) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        const auto words = load_vector<T, kPiece>(cache.query(r) + part(p));
#pragma unroll
        for (int j = 0; j < kPiece; ++j) query[r][p * kPiece + j] = cache.scale * widen(words.at[j]);
      }
    }
  }

  template <typename Cache>
  __device__ static void attend(const Cache& cache, float* parts) {
    __shared__ CopyBarrier of_warps[kWarps][kStages];
    CopyBarrier* const barriers = of_warps[threadIdx.x / 32];
    unsigned char* const tiles = dynamic_shared() + threadIdx.x / 32 * (kStages * kStageBytes);
    if (threadIdx.x % 32 == 0) {
      for (int s = 0; s < kStages; ++s) barriers[s].begin();
      show_barriers();
    }
    const unsigned mine = cache.begin + threadIdx.x / 32 * kKeys;
    for (int s = 0; s < kStages; ++s) fetch(cache, mine + s * kStep, tiles + s * kStageBytes, barriers[s]);
    __syncwarp();
    Query query;
    Found attended;
    load_queries(cache, query);
    const typename Masks::Rows mask_rows = Masks::rows_of(cache, 0, 1, kRows - 1);
    const unsigned key = threadIdx.x % 32 / kLanes;
    Masks next;  // of the stage ahead
    if (mine < cache.end) next.load(mask_rows, mine + key, kGroups, cache.end);
    int at = 0;
    unsigned odd = 0;
#pragma unroll 1
    for (unsigned first = mine; first < cache.end; first += kStep) {
      unsigned char* const tile = tiles + at * kStageBytes;
      const Masks masks = next;
      next.load(mask_rows, first + kStep + key, kGroups, cache.end);
      barriers[at].wait(odd);
      if (cache.has_new) {
        const Stage<true> stage = stage_at<true>(cache, first, tile);
        keep(cache, first, stage);
        add(cache, stage, query, masks, attended);
      } else {
        add(cache, stage_at<false>(cache, first, tile), query, masks, attended);
      }
      __syncwarp();  // all lanes have read the stage
      fetch(cache, first + kStages * kStep, tile, barriers[at]);
      if (++at == kStages) {
        at = 0;
        odd ^= 1;
      }
    }
    __syncthreads();  // the stages are free
    place(attended);
    CacheLanes<T, kWidth, kRows, kThreads, true>::store(parts);
  }

  // Joins what the lanes of a warp found, in shared memory, as CacheLanes::store takes it.
  __device__ static void place(Found& attended) {
    float* const shared = reinterpret_cast<float*>(dynamic_shared()) + threadIdx.x / 32 * (kRows * kFound);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      Attended<kVector>& mine = attended[r];
      mine.template join_groups<kLanes>();
      if (threadIdx.x % 32 >= kLanes) continue;
      float* const found = shared + r * kFound;
#pragma unroll
      for (int j = 0; j < kVector; ++j) found[part(j / kPiece) + j % kPiece] = mine.value[j];
      found[kWidth] = mine.top;
      found[kWidth + 1] = mine.sum;
    }
  }
};

}  // namespace onnxopt
