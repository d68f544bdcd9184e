// How a block of a depthwise convolution behind a 1x1 convolution divides its work, and where things lie in shared
// memory.
//
// The inputs that a tile of outputs sees lie there twice: narrow, [slot][inputs], for all channels at once, and wide,
// [slot][channels], for the channels of one round. A slot is a pixel. Where outputs are two pixels apart, the pixels of
// even columns of a row come before those of odd ones, so that what neighbouring outputs see lies side by side.
#pragma once

#include "depthwise/abi.h"
#include "device/index.cuh"
#include "device/products/product_columns.cuh"
#include "device/static_window.cuh"

namespace onnxopt {

// Outputs: kDown x kAcross of kChannels at a time; a thread takes kStrip rows of kVector channels. kInputs: channels of
// the narrow tensor. kinds/depthwise/tiles.py has the same sizes.
template <typename W, int kDown_, int kAcross_, int kStrip_, int kVector_, int kChannels_, int kWarps_, int kInputs_>
struct ExpandedTile : ProductColumns<kChannels_ / 8> {
  static constexpr int kDown = kDown_;
  static constexpr int kAcross = kAcross_;
  static constexpr int kStrip = kStrip_;
  static constexpr int kVector = kVector_;
  static constexpr int kChannels = kChannels_;
  static constexpr int kWarps = kWarps_;
  static constexpr int kInputs = kInputs_;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kRows = W::rows(kDown);
  static constexpr int kColumns = W::columns(kAcross);
  static constexpr int kSlots = kRows * kColumns;
  static constexpr int kProducts = (kSlots + 15) / 16;
  static_assert(W::kDense && W::kStrideAcross <= 2, "as slots lie");
  static_assert(kDown % kStrip == 0 && kChannels % 8 == 0 && 8 % kVector == 0 && kInputs % 8 == 0, "whole vectors");

  static constexpr int kOctets = kInputs / 8;  // of a pixel
  static constexpr int kSteps = kOctets / 2;   // of 16 of the product's depth; an odd octet is left
  static constexpr bool kOddOctet = kOctets % 2 != 0;
  // Eight neighbouring slots on eight bank groups: the distance is an odd number of octets.
  static constexpr int kInPitch = (kOctets | 1) * 16;
  static constexpr int kPitch = kChannels * 2;

  // A thread takes one vector of channels, at every kTogether-th position: a column of a strip of rows.
  static constexpr int kGroups = kChannels / kVector;
  static constexpr int kPositions = kDown / kStrip * kAcross;
  static constexpr int kTogether = kThreads / kGroups;
  static_assert(kTogether > 0, "a thread for every vector of channels");

  static constexpr int kInBytes = kProducts * 16 * kInPitch;
  static constexpr int kPlaneBytes = kProducts * 16 * kPitch;
  static constexpr int kSharedBytes = kInBytes + kPlaneBytes + kPositions * kChannels * 4;

  static constexpr int kHalf = (kColumns + W::kStrideAcross - 1) / W::kStrideAcross;
  __device__ static constexpr int slot(int row, int column) {
    return row * kColumns + column % W::kStrideAcross * kHalf + column / W::kStrideAcross;
  }
  __device__ static constexpr int row_of(int slot) { return slot / kColumns; }
  __device__ static constexpr int column_of(int slot) {
    const int at = slot % kColumns;
    return W::kStrideAcross == 1 ? at : at < kHalf ? 2 * at : 2 * (at - kHalf) + 1;
  }

  static constexpr int kTiles = kChannels / 8;
  __device__ static constexpr int channel(int tile, int column) { return ExpandedTile::result(tile, column); }
};

// Where a tile's outputs begin, and the inputs that it sees. piece: of the blocks that share the tile.
struct ExpandedPlace {
  int image;
  int tile;  // of its image
  int piece;
  int out_top;
  int out_left;
  int top;
  int left;

  template <typename W, typename Tile>
  __device__ static ExpandedPlace of(const DepthwiseParams& p) {
    const DepthwiseGrid& grid = p.grid;
    const unsigned tile = quotient(blockIdx.x, grid.inner);
    const unsigned image = quotient(tile, grid.outer);
    const unsigned of_image = tile - image * grid.outer.divisor;
    const unsigned down = quotient(of_image, grid.middle);
    const int top = static_cast<int>(down) * Tile::kDown;
    const int left = static_cast<int>(of_image - down * grid.middle.divisor) * Tile::kAcross;
    return {static_cast<int>(image),
            static_cast<int>(of_image),
            static_cast<int>(blockIdx.x - tile * grid.inner.divisor),
            top,
            left,
            top * W::kStrideDown - p.pad_top,
            left * W::kStrideAcross - p.pad_left};
  }

  // Whether the tile sees no padding.
  template <typename Tile>
  __device__ bool whole(const DepthwiseParams& p) const {
    return top >= 0 && left >= 0 && top + Tile::kRows <= p.height && left + Tile::kColumns <= p.width;
  }
};

}  // namespace onnxopt
