// The columns of a product of tiles of eight columns, permuted so that a lane's sums are of neighbouring results: over
// four tiles, or two, or one at the end.
#pragma once

namespace onnxopt {

template <int kTiles>
struct ProductColumns {
  __device__ static constexpr int group_tiles(int tile) {
    const int rest = kTiles % 4;
    if (tile < kTiles - rest) return 4;
    return rest >= 2 && tile < kTiles - rest + 2 ? 2 : 1;
  }
  __device__ static constexpr int group_first(int tile) {
    return tile < kTiles - kTiles % 4 ? tile / 4 * 4 : tile & ~1;
  }
  // Which result a column of a tile is.
  __device__ static constexpr int result(int tile, int column) {
    const int first = group_first(tile), tiles = group_tiles(tile);
    return 8 * first + column / 2 * 2 * tiles + (tile - first) * 2 + column % 2;
  }
};

}  // namespace onnxopt
