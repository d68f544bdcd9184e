// How a block of a convolution of images divides its work, and where things lie in shared memory.
//
// An image lies there as [row][pixel][4 channels], padded with zeros. What an output sees of one row is contiguous, and
// a chunk is 16 bytes of that: two pixels. The depth of the product is all chunks of all rows of the kernel.
#pragma once

#include "device/products/product_columns.cuh"
#include "device/static_window.cuh"

namespace onnxopt {

constexpr int kPixelBytes = 8;

// The block has kWarps warps of kProducts products, each of 16 outputs; its outputs are kAcross neighbours in each of
// some rows, and kFilters filters. kinds/image_convolution/tiles.py has the same sizes.
template <typename W, int kProducts_, int kWarps_, int kAcross_, int kFilters_>
struct ImageTile : ProductColumns<kFilters_ / 8> {
  static constexpr int kProducts = kProducts_;
  static constexpr int kWarps = kWarps_;
  static constexpr int kAcross = kAcross_;
  static constexpr int kFilters = kFilters_;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kOutputs = 16 * kProducts * kWarps;
  static constexpr int kDown = kOutputs / kAcross;
  static_assert(kOutputs % kAcross == 0 && (kAcross == 8 || kAcross % 16 == 0), "whole rows");
  static_assert(16 * kProducts % kAcross == 0 || kAcross % (16 * kProducts) == 0, "a warp's products lie alike");

  static constexpr int kPairs = (W::kWidth + 1) / 2;  // of pixels, in a row of the kernel
  static constexpr int kChunks = W::kHeight * kPairs;
  static constexpr int kSteps = (kChunks + 1) / 2;  // of 16 of the product's depth
  static constexpr int kRows = W::rows(kDown);
  static constexpr int kColumns = ((kAcross - 1) * W::kStrideAcross + 2 * kPairs + 1) / 2 * 2;
  static constexpr int kRowBytes = kColumns * kPixelBytes;
  // A chunk begins at a multiple of 16 bytes. Where outputs begin at odd pixels, a copy lies one pixel further left.
  static constexpr bool kShifted = W::kStrideAcross % 2 != 0;
  static constexpr int kCopyBytes = (kRows * kRowBytes + 63) / 128 * 128 + 64;
  static constexpr int kImageBytes = kShifted ? 2 * kCopyBytes : kCopyBytes;

  static constexpr int kTiles = kFilters / 8;  // of a product's columns
  static constexpr int kTilePairs = (kTiles + 1) / 2;
  static constexpr int kWeightsBytes = kSteps * kTilePairs * 32 * 16;
  static constexpr int kSharedBytes = kWeightsBytes + kFilters * 4 + kImageBytes;
  static_assert(kFilters % 8 == 0, "whole tiles");

  // Whether a product takes in inputs that an output does not see, with weights of zero.
  static constexpr bool kSeesMore = W::kWidth % 2 != 0 || kChunks % 2 != 0;

  // Where a chunk lies behind the first one.
  __device__ static constexpr int chunk_bytes(int chunk) {
    const int of = chunk < kChunks ? chunk : kChunks - 1;
    return of / kPairs * kRowBytes + of % kPairs * 2 * kPixelBytes;
  }
  __device__ static constexpr int product_bytes(int i) {
    return kAcross == 8
               ? 2 * i * W::kStrideDown * kRowBytes
               : 16 * i / kAcross * W::kStrideDown * kRowBytes + 16 * i % kAcross * W::kStrideAcross * kPixelBytes;
  }

  __device__ static constexpr int filter(int tile, int column) { return ImageTile::result(tile, column); }
};

}  // namespace onnxopt
