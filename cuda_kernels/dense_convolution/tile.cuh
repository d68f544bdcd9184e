// How a block of a dense convolution divides its work, and where its operands are in shared memory.
#pragma once

#include "device/products/product_columns.cuh"
#include "device/static_window.cuh"

namespace onnxopt {

// A block has kWarps warps. kParts of them share outputs, and each has some of the kFilters filters. A warp's kProducts
// products are below each other; each is of kAcross outputs in a row: 16, or 8 in each of two rows.
// kinds/convolution/dense_kernels.py has the same sizes.
//
// Rows of shared memory, the channels of a pixel or the weights of a filter, are an odd number of 16 bytes apart: eight
// of them begin in different banks.
template <typename W_, int kChannels_, int kFilters_, int kProducts_, int kWarps_, int kAcross_, int kParts_>
struct DenseTile : ProductColumns<kFilters_ / kParts_ / 8> {
  using W = W_;
  static constexpr int kChannels = kChannels_;
  static constexpr int kFilters = kFilters_;
  static constexpr int kProducts = kProducts_;
  static constexpr int kWarps = kWarps_;
  static constexpr int kAcross = kAcross_;
  static constexpr int kParts = kParts_;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kProductRows = 16 / kAcross;
  static constexpr int kDown = kProductRows * kProducts * kWarps / kParts;
  static constexpr int kWarpFilters = kFilters / kParts;
  static constexpr int kTiles = kWarpFilters / 8;  // of a product's columns
  static_assert(kChannels % 16 == 0 && kWarpFilters % 16 == 0 && kWarps % kParts == 0, "whole products");
  static_assert(kAcross == 8 || kAcross == 16, "whole rows");

  static constexpr int kRows = W::rows(kDown);  // of x that a tile sees
  static constexpr int kColumns = W::columns(kAcross);
  static constexpr int kPixels = kRows * kColumns;
  static constexpr int kChunks = kChannels / 8;  // of 16 bytes, of a pixel
  static constexpr int kPitch = (kChunks | 1) * 16;
  static constexpr int kImageBytes = kPixels * kPitch;

  static constexpr int kWeightChunks = W::kTaps * kChunks;
  static constexpr int kWeightPitch = (kWeightChunks | 1) * 16;
  static constexpr int kWeightsBytes = kFilters * kWeightPitch;
  static constexpr int kSharedBytes = kWeightsBytes + 2 * kImageBytes;

  // Where 16 bytes of a pixel are, and of a row of weights.
  __device__ static constexpr int place_of_image(int row, int column, int chunk) {
    return (row * kColumns + column) * kPitch + chunk * 16;
  }
  __device__ static constexpr int place_of_weights(int row, int chunk) { return row * kWeightPitch + chunk * 16; }
};

}  // namespace onnxopt
