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
  using T = typename Op::Stored;
  using Rows = typename FlashSoftmax<Op, Tile>::Rows;

  // By way of the warp's queries in shared memory, so that accesses to the result are whole rows of it.
  __device__ static void write(const FlashAttentionParams& p, const FlashPlace& at, const Rows& rows,
                               unsigned char* queries) {
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
};

}  // namespace onnxopt
