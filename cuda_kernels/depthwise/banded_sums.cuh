// The sums of a tile's results for each image and channel, which a squeeze-excite takes its means from.
#pragma once

#include "depthwise/abi.h"
#include "depthwise/banded_tile.cuh"
#include "device/scalar.cuh"
#include "device/shuffle.cuh"

namespace onnxopt {

template <typename T, typename Tile>
struct BandedSums {
  // The sums of all lanes, by way of memory that nothing else uses any more.
  __device__ static void write(const DepthwiseParams& p, int chunk, const BandedPlace& at,
                               float (&sums)[Tile::kImages][8], float* shared) {
    constexpr int kAll = Tile::kImages * Tile::kChannels;
    static_assert(Tile::kWarps * kAll * 4 <= Tile::kPlanesBytes, "the sums of all warps fit where the planes were");
#pragma unroll
    for (int j = 0; j < 8 * Tile::kImages; ++j) {
#pragma unroll
      for (int mask = 16; mask >= Tile::kChunks; mask /= 2) {
        sums[j / 8][j % 8] += shuffle_xor(sums[j / 8][j % 8], mask);
      }
    }
    __syncthreads();
    if (threadIdx.x % 32 < Tile::kChunks) {
      float* const of_warp = shared + threadIdx.x / 32 * kAll + 8 * chunk;
#pragma unroll
      for (int j = 0; j < 8 * Tile::kImages; ++j) of_warp[j / 8 * Tile::kChannels + j % 8] = sums[j / 8][j % 8];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kAll; i += Tile::kThreads) {
      const int of_image = i / Tile::kChannels;
      const int channel = at.channel + i % Tile::kChannels;
      if (of_image >= at.images || channel >= p.channels) continue;
      float sum = 0.0f;
#pragma unroll
      for (int w = 0; w < Tile::kWarps; ++w) sum += shared[w * kAll + i];
      *of_tile(p, at, of_image, channel) = sum;
    }
  }

  __device__ static float* of_tile(const DepthwiseParams& p, const BandedPlace& at, int of_image, int channel) {
    const int64_t tile = static_cast<int64_t>(at.image + of_image) * p.grid.outer.divisor + at.tile;
    return p.sums + tile * p.channels + channel;
  }

  // The sums of a tile whose outputs the block has stored.
  __device__ static void write_stored(const DepthwiseParams& p, const BandedPlace& at) {
    __syncthreads();
    for (int i = threadIdx.x; i < at.images * Tile::kChannels; i += Tile::kThreads) {
      const int of_image = i / Tile::kChannels;
      const int channel = at.channel + i % Tile::kChannels;
      if (channel >= p.channels) continue;
      float sum = 0.0f;
      for (int h = at.top; h < min(at.top + Tile::kTileRows, p.out_height); ++h) {
        for (int w = at.left; w < min(at.left + Tile::kOutColumns, p.out_width); ++w) {
          const int64_t row = static_cast<int64_t>(at.image + of_image) * p.out_height + h;
          sum += widen(static_cast<const T*>(p.y)[(row * p.out_width + w) * p.channels + channel]);
        }
      }
      *of_tile(p, at, of_image, channel) = sum;
    }
  }
};

}  // namespace onnxopt
