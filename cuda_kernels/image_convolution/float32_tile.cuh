// How a block of a float32 convolution of images divides its work, and where things lie in shared memory.
//
// An image lies there as [row][pixel modulo kStrideAcross][pixel / kStrideAcross][4 channels], padded with zeros. The
// depth of the product is all taps, two of them in a step.
#pragma once

#include "device/static_window.cuh"

namespace onnxopt {

constexpr int kFloat32PixelBytes = 16;

// The block has kWarps warps of kProducts products, each of 16 outputs; its outputs are kAcross neighbours in each of
// some rows, and kFilters filters. kinds/image_convolution/tiles.py has the same sizes.
template <typename W, int kProducts_, int kWarps_, int kAcross_, int kFilters_>
struct Float32ImageTile {
  static constexpr int kProducts = kProducts_;
  static constexpr int kWarps = kWarps_;
  static constexpr int kAcross = kAcross_;
  static constexpr int kFilters = kFilters_;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kOutputs = 16 * kProducts * kWarps;
  static constexpr int kDown = kOutputs / kAcross;
  static_assert(kOutputs % kAcross == 0 && (kAcross == 8 || kAcross % 16 == 0), "whole rows");
  static_assert(16 * kProducts % kAcross == 0 || kAcross % (16 * kProducts) == 0, "a warp's products lie alike");

  static constexpr int kSteps = (W::kTaps + 1) / 2;
  static constexpr int kRows = W::rows(kDown);
  static constexpr int kColumns = W::columns(kAcross);
  static constexpr int kOfPhase = (kColumns + W::kStrideAcross - 1) / W::kStrideAcross;
  static constexpr int kRowBytes = W::kStrideAcross * kOfPhase * kFloat32PixelBytes;

  static constexpr int kTiles = kFilters / 8;  // of a product's columns
  static constexpr int kTilePairs = (kTiles + 1) / 2;
  static constexpr int kWeightsBytes = kSteps * kTilePairs * 32 * 16;
  static constexpr int kSharedBytes = kWeightsBytes + kFilters * 4 + kRows * kRowBytes;
  static_assert(kFilters % 8 == 0, "whole tiles");

  // Where a pixel lies in its row.
  __device__ static constexpr int column_bytes(int pixel) {
    return (pixel % W::kStrideAcross * kOfPhase + pixel / W::kStrideAcross) * kFloat32PixelBytes;
  }
  // Where a tap lies behind the first one; the last one's place for one that is not there.
  __device__ static constexpr int tap_bytes(int tap) {
    const int of = tap < W::kTaps ? tap : W::kTaps - 1;
    return of / W::kWidth * kRowBytes + column_bytes(of % W::kWidth);
  }
  // Where what an output sees begins.
  __device__ static constexpr int output_bytes(int output) {
    return output / kAcross * W::kStrideDown * kRowBytes + output % kAcross * kFloat32PixelBytes;
  }
  // Where what a warp's product number i sees lies behind the first one's.
  __device__ static constexpr int product_bytes(int i) { return output_bytes(16 * i); }

  // Which filter a column of a tile is: a lane's sums of two tiles are of neighbours.
  __device__ static constexpr int filter(int tile, int column) {
    const int first = tile & ~1, tiles = first + 1 < kTiles ? 2 : 1;
    return 8 * first + column / 2 * 2 * tiles + (tile - first) * 2 + column % 2;
  }
};

}  // namespace onnxopt
