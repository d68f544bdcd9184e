// What new tokens attend to: a cache of keys and values, with theirs behind it or in slots of it.
//
// A Cache is of one group of one sequence, and of a block: its split of the keys and its rows, each a head of a new
// token. It has
//   begin, end            the first key of the block, and behind the last one
//   scale                 of scores
//   query(row)            the elements of a row's query
//   group                 the keys' and values' head
//   new_token(at)         which of the new tokens stands at a place of the longer cache; -1 for none
//   holds_new(first, last)              whether some of the keys from first to before last are new tokens
//   past_key(at), past_value(at)        where they lie in the cache, one behind the other, as Code
//   new_key(token), new_value(token)    and among the new tokens
//   writes(token), present_key(at), present_value(at)    whether the block stores them, and where
//   mask_row(row)         where it is masked: what is added to the row's scores, as mask_of (key_masks.cuh) has it, by
//   keys
#pragma once

#include "device/dtypes.cuh"

namespace onnxopt {

constexpr float kNoScore = -1e30f;  // below any score: its weight beside one is 0, and beside itself not NaN

}  // namespace onnxopt
