// The masks of a tile's keys, which come to shared memory with the tile, as far ahead as that.
//
// Copies are of words, and a row of a mask may begin in the middle of one: it is then moved by an element there.
#pragma once

#include "attention/key_masks.cuh"
#include "device/copy_async.cuh"
#include "device/dtypes.cuh"

namespace onnxopt {

// Where there is no mask.
template <typename T, int kRows, int kKeys, bool kMasked>
struct TileMasks {
  enum : int { kBytes = 0 };

  template <typename Cache>
  __device__ explicit TileMasks(const Cache&) {}
  __device__ void fetch(unsigned, unsigned, unsigned char*) const {}
  __device__ float at(const unsigned char*, int, int) const { return 0.0f; }
};

// Of kRows rows, at most 16, and kKeys keys. A lane reads those of rows lane / 4 and that plus 8.
template <typename T, int kRows, int kKeys>
struct TileMasks<T, kRows, kKeys, true> {
  static_assert(sizeof(T) == 2, "a word has two");
  enum : int {
    kWords = kKeys / 2 + 1,  // of a row
    kCopies = (kRows * kWords + 31) / 32,
    kBytes = (kRows * kWords * 4 + 15) / 16 * 16,
  };
  const T* from[kCopies];  // what the lane copies, counted from key 0 of a tile on; null for nothing
  int key[kCopies];        // the first one of two
  int place[2];            // of the lane's rows, key 0

  // Whether a row begins in the middle of a word, in all tiles of the block.
  template <typename Cache>
  __device__ static int moved(const Cache& cache, const T* row) {
    return reinterpret_cast<uint64_t>(row + cache.begin) % 4 != 0 ? 1 : 0;
  }

  template <typename Cache>
  __device__ explicit TileMasks(const Cache& cache) {
    const int lane = threadIdx.x % 32;
    const bool same = cache.same_mask();
    const int words = same ? kWords : kRows * kWords;
#pragma unroll
    for (int c = 0; c < kCopies; ++c) {
      const int i = min(lane + 32 * c, words - 1);
      const T* const row = cache.mask_row(i / kWords);
      key[c] = i % kWords * 2 - moved(cache, row);
      from[c] = lane + 32 * c < words ? row + key[c] : nullptr;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = same ? 0 : min(lane / 4 + 8 * half, kRows - 1);
      place[half] = row * kWords * 2 + moved(cache, cache.mask_row(row));
    }
  }

  // Asks for those of keys from `first` on, before `end`.
  __device__ void fetch(unsigned first, unsigned end, unsigned char* to) const {
#pragma unroll
    for (int c = 0; c < kCopies; ++c) {
      const int i = threadIdx.x % 32 + 32 * c;
      if (from[c] == nullptr) break;
      const int left = static_cast<int>(end - first) - key[c];
      copy_part_async<4>(to + 4 * i, from[c] + first, 2 * max(min(left, 2), 0));
    }
  }

  // Of a lane's row, of those that are fetched.
  __device__ float at(const unsigned char* fetched, int half, int of_tile) const {
    if (8 * half >= kRows) return 0.0f;
    return mask_of(reinterpret_cast<const T*>(fetched)[place[half] + of_tile]);
  }
};

}  // namespace onnxopt
