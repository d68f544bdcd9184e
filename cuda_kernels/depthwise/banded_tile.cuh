// How a block of a banded depthwise convolution divides its work, where its tile begins, and where things lie in shared
// memory.
#pragma once

#include "depthwise/abi.h"
#include "device/index.cuh"
#include "device/scalar.cuh"
#include "device/static_window.cuh"

namespace onnxopt {

// Rows of a tile, and how many of them share banks.
template <typename W, int kAcross, int kDown, int kImages>
struct TileRows {
  static constexpr int kSegments = 16 / kAcross / kImages;  // of an image
  static constexpr int kTileRows = kDown * kSegments;       // of an image
  static constexpr int kImageRows = W::rows(kTileRows);

  // The first of the input rows that a segment sees.
  static constexpr int segment_row(int segment) {
    return segment / kSegments * kImageRows + segment % kSegments * kDown * W::kStrideDown;
  }

  // How many of 8 rows of a matrix fall on the same banks, for rows `row` octets long.
  static constexpr int conflicts(int row, bool of_inputs, int together) {
    int hits[8] = {};
    int most = 0;
    for (int m = 0; m < 8; ++m) {
      const int down = of_inputs ? segment_row(m / kAcross) : m / kAcross * kDown;
      const int at = (down * row + m % kAcross * (of_inputs ? W::kStrideAcross : 1)) % 8;
      most = ++hits[at] > most ? hits[at] : most;
    }
    return 2 * most + (together > 1 && row % 2 == 0);  // rows moved together lie on banks of their own
  }

  static constexpr int best_row(int least, bool of_inputs, int together) {
    int best = least;
    for (int row = least; row < least + 3; ++row) {
      if (conflicts(row, of_inputs, together) < conflicts(best, of_inputs, together)) best = row;
    }
    return best;
  }
};

// Octets of a plane: channels that are moved together lie on banks of their own.
constexpr int plane_octets(int inputs, int outputs, int together) {
  int octets = inputs > outputs ? inputs : outputs;
  while (octets % (2 * together) != together % (2 * together)) ++octets;
  return octets;
}

// The 16 rows of a product are `across` octets of outputs in each of 16 / across segments. A segment is `down` rows of
// outputs, the segments of an image follow each other. kImages: so many images share a product. kPieces: of 16 bytes
// that a thread loads at once. kinds/depthwise/tiles.py has the same sizes.
template <typename W, int kAcross_, int kDown_, int kChunks_, int kWarps_, int kImages_, int kPieces_>
struct BandedTile {
  using Rows = TileRows<W, kAcross_, kDown_, kImages_>;
  static constexpr int kAcross = kAcross_;
  static constexpr int kDown = kDown_;
  static constexpr int kChunks = kChunks_;  // of 8 channels
  static constexpr int kWarps = kWarps_;
  static constexpr int kImages = kImages_;
  static constexpr int kPieces = kPieces_;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kChannels = 8 * kChunks;
  static constexpr int kOwn = kChannels / kWarps;  // channels of a warp
  static constexpr int kTogether = 4 / kChunks;    // rows that a warp moves at once
  static constexpr int kSegments = Rows::kSegments;
  static constexpr int kTileRows = Rows::kTileRows;
  static constexpr int kOutRows = kTileRows * kImages;
  static constexpr int kOutColumns = 8 * kAcross;
  static constexpr int kImageRows = Rows::kImageRows;
  static constexpr int kRows = kImageRows * kImages;
  static constexpr int kColumns = W::columns(kOutColumns);
  static constexpr int kDepth = (W::columns(8) + 7) / 8;  // octets of inputs that an octet of outputs sees
  static constexpr int kOctets = (kAcross - 1) * W::kStrideAcross + kDepth;
  static_assert(kSegments > 0 && 8 % kOwn == 0, "the channels of a warp are of one chunk");

  static constexpr int kRow = Rows::best_row(kOctets, true, kTogether);  // octets from row to row
  static constexpr int kOutRow = Rows::best_row(kAcross, false, kTogether);
  static constexpr int kPlane =
      plane_octets((kRows + kTogether - 1) / kTogether * kTogether * kRow, kOutRows* kOutRow, kTogether);
  static constexpr int kPlanesBytes = kChannels * kPlane * 16;
  static constexpr int kTableRows = kChannels * W::kHeight;
  static constexpr int kTableWords = (W::kWidth - 1) * W::kDilationAcross + 3;
  static constexpr int kSharedBytes = kPlanesBytes + kTableRows * kTableWords * 4;

  // Planes of channels that a lane's 16 bytes hold lie kChunks apart: the eight rows of a matrix on eight bank groups.
  __device__ static int plane_of(int channel) { return (channel % 8 * kChunks + channel / 8) * kPlane; }
  static constexpr int kOwnPlane = kChunks * kPlane;  // from channel to channel of a warp
};

// Where a tile's outputs begin, and its channels.
struct BandedPlace {
  int channel;
  int image;  // the first
  int images;
  int top;
  int left;
  int tile;  // of its image

  template <typename Tile>
  __device__ static BandedPlace of(const DepthwiseParams& p) {
    const DepthwiseGrid& grid = p.grid;
    const unsigned tile = quotient(blockIdx.x, grid.inner);
    const unsigned group = quotient(tile, grid.outer);
    const unsigned of_image = tile - group * grid.outer.divisor;
    const unsigned down = quotient(of_image, grid.middle);
    const int image = static_cast<int>(group) * Tile::kImages;
    return {static_cast<int>(blockIdx.x - tile * grid.inner.divisor) * Tile::kChannels,
            image,
            min(Tile::kImages, p.batch - image),
            static_cast<int>(down) * Tile::kTileRows,
            static_cast<int>(of_image - down * grid.middle.divisor) * Tile::kOutColumns,
            static_cast<int>(of_image)};
  }
};

}  // namespace onnxopt
