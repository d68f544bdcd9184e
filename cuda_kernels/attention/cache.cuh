// What new tokens attend to: a cache of keys and values, with theirs behind it or in slots of it.
//
// A Cache is of one group of one sequence, and of a block: its split of the keys and its rows, each a head of a new
// token. Splits are keys one behind the other, or tiles of all keys, which the blocks take in turn: at any time they
// read few places of memory, each of which is long. It has
//
//   begin, end            the first key of the block, and behind the last one; of all keys, where tiles go in turn
//   held()                keys that the cache holds before the new tokens
//   scale                 of scores
//   query(row)            the elements of a row's query
//   group                 the keys' and values' head
//   new_token(at)         which of the new tokens stands at a place of the longer cache; -1 for none
//   tokens(), kMostTokens, place_of(token)    how many new tokens there are, and at most; where one of them stands
//   holds_new(first, last)              whether some of the keys from first to before last are new tokens
//   past_key(at), past_value(at)        where they lie in the cache, one behind the other, as Code
//   new_key(token), new_value(token)    and among the new tokens
//   writes(token), present_key(at), present_value(at)    whether the block stores them, and where
//   mask_row(row)         where it is masked: what is added to the row's scores, by keys, as mask_of (key_masks.cuh)
//   same_mask()           where it is masked: whether all rows have one row of it
//   splits(), split()     how many blocks share the keys of its rows, and which of them it is
//   parts(), part_step()  where the first of them puts what it found, and how many numbers further on the next one does
//   ended()               counts them; null where another launch joins what they found
//   output(row)           where the result of a row goes; null for a row that is not there
#pragma once

#include "device/dtypes.cuh"
#include "device/prefetch.cuh"
#include "device/scalar.cuh"

namespace onnxopt {

constexpr float kNoScore = -1e30f;  // below any score: its weight beside one is 0, and beside itself not NaN

// Asks for the keys and values that a cache holds from `first` on, before `end`, by lanes `lane` and lane + 1 of a
// warp. Nothing is read: the kernel ahead may write them.
template <int kWidth, typename Cache>
__device__ inline void ask_for(const Cache& cache, unsigned first, unsigned end, unsigned lane) {
  constexpr unsigned kBytes = kWidth * sizeof(*cache.past_key(0));  // of a key
  const unsigned of_warp = threadIdx.x % 32 - lane;
  end = min(end, cache.held());
  if (kBytes % 16 != 0 || of_warp >= 2 || first >= end) return;
  prefetch(of_warp == 0 ? cache.past_key(first) : cache.past_value(first), (end - first) * kBytes);
}

// Where a block puts what it finds for a row: sums of weighted values, then the largest score and the sum of weights.
template <int kWidth, typename Cache>
__device__ inline float* part_of(const Cache& cache, unsigned row) {
  return cache.parts() + static_cast<uint64_t>(cache.split()) * cache.part_step() + row * (kWidth + 2);
}

}  // namespace onnxopt
