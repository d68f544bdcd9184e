// Where the outputs of a tile lie in the result of a convolution of images.
#pragma once

#include "device/index.cuh"
#include "image_convolution/abi.h"

namespace onnxopt {

// The first output of a tile.
struct ImagePlace {
  int image;
  int top;
  int left;
};

template <typename Tile>
__device__ inline ImagePlace image_place(const ImageConvolutionParams& p, unsigned tile) {
  const unsigned image = quotient(tile, p.of_image);
  const unsigned of_image = tile - image * p.of_image.divisor;
  const unsigned down = quotient(of_image, p.of_row);
  const unsigned across = of_image - down * p.of_row.divisor;
  return {static_cast<int>(image), static_cast<int>(down) * Tile::kDown, static_cast<int>(across) * Tile::kAcross};
}

}  // namespace onnxopt
