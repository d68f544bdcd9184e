// What a block of an attention stores.
#pragma once

#include "device/scalar.cuh"
#include "device/shuffle.cuh"
#include "device/vector.cuh"
#include "flash_attention/softmax.cuh"

namespace onnxopt {

// Op: as of FlashAttention.
template <typename Op, typename Tile>
struct FlashResult {
  using Result = typename Op::Result;
  using Rows = typename FlashSoftmax<Op, Tile>::Rows;

  static constexpr int kPitch = Tile::kQueryPitch * Tile::kBytes / sizeof(Result);

  __device__ static void store_pair(Result* to, float first, float second) {
    if constexpr (sizeof(Result) == 1) {
      const unsigned low = Narrow<Result>::from(Op::finish(first)).bits;
      const unsigned high = Narrow<Result>::from(Op::finish(second)).bits;
      *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(low | high << 8);
    } else if constexpr (sizeof(Result) == 4) {
      store_vector(to, Vector<Result, 2>{Op::finish(first), Op::finish(second)});
    } else {
      *reinterpret_cast<uint32_t*>(to) = narrow_pair<Result>(Op::finish(first), Op::finish(second));
    }
  }

  // By way of the warp's queries in shared memory, so that accesses to the result are whole rows of it.
  __device__ static void write(const FlashAttentionParams& p, const FlashPlace& at, const Rows& rows,
                               unsigned char* queries) {
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    Result* const place = reinterpret_cast<Result*>(queries) + warp * 16 * kPitch;
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = rows.sum[half];
      sum += shuffle_xor(sum, 1);
      sum += shuffle_xor(sum, 2);
      const float factor = 1.0f / sum;
      Result* const row = place + (lane / 4 + 8 * half) * kPitch + lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < Tile::kTiles; ++j) {
        store_pair(row + j * 8, rows.y[j][2 * half] * factor, rows.y[j][2 * half + 1] * factor);
      }
    }
    __syncwarp();
    constexpr int kPart = Tile::kAccess / Tile::kBytes;
    constexpr int kParts = Tile::kValues / kPart;
    const unsigned first = at.first + warp * 16;
    const uint64_t token = static_cast<uint64_t>(at.batch) * p.queries + first;
    Result* const y = static_cast<Result*>(p.y) + (token * p.heads + at.head) * Tile::kValues;
    const unsigned of_token = p.heads * Tile::kValues;
#pragma unroll 4
    for (int i = lane; i < 16 * kParts; i += 32) {
      const unsigned row = i / kParts;
      const unsigned column = i % kParts * kPart;
      if (first + row >= p.queries) break;
      const auto part = load_vector<Result, kPart>(place + row * kPitch + column);
      store_vector(y + row * of_token + column, part);
    }
  }
};

}  // namespace onnxopt
