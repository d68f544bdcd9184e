// y = Steps::activation(conv(x, w) + bias + residual): dense convolutions of few channels on the matrix units, NHWC,
// 16-bit floats, sums in float32.
//
// A block keeps the weights of its filters in shared memory and takes tiles of outputs one after the other. The inputs
// that a tile sees come to shared memory once, those of the next tile while the products of this one run; every tap
// reads its rows of the product's left matrix where they are.
//
// Steps has the types Window and Stored, what is read (kBias, kResidual), whether the residual is added after the
// activation (kResidualLast), and the activation (kActivation).
#pragma once

#include "dense_convolution/abi.h"
#include "dense_convolution/activation.cuh"
#include "dense_convolution/products.cuh"
#include "device/copy_async.cuh"
#include "device/dynamic_shared.cuh"
#include "device/early_launch.cuh"
#include "device/index.cuh"
#include "device/matrix_words.cuh"
#include "device/scalar.cuh"
#include "device/vector.cuh"

namespace onnxopt {

template <typename Steps, typename Tile>
struct DenseConvolution {
  using T = typename Steps::Stored;
  using W = typename Steps::Window;

  // The first output of a tile.
  struct Place {
    int image;
    int top;
    int left;
  };
  using Products = DenseProducts<T, Tile>;
  using Sums = DenseSums<Tile>;
  const DenseConvolutionParams& p;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32 / Tile::kParts;  // of those of the same filters

  __device__ Place place(unsigned tile) const {
    const unsigned image = quotient(tile, p.image_tiles);
    const unsigned inside = tile - image * p.image_tiles.divisor;
    const unsigned down = quotient(inside, p.row_tiles);
    const unsigned across = inside - down * p.row_tiles.divisor;
    return {static_cast<int>(image), static_cast<int>(down) * Tile::kDown, static_cast<int>(across) * Tile::kAcross};
  }

  // Asks for the weights, a filter a row, as the columns of the product are permuted.
  __device__ void bring_weights(unsigned char* to) const {
#pragma unroll 4
    for (int k = threadIdx.x; k < Tile::kFilters * Tile::kWeightChunks; k += Tile::kThreads) {
      const int row = k / Tile::kWeightChunks, chunk = k - row * Tile::kWeightChunks;
      const int column = row % Tile::kWarpFilters;  // of the warp's products
      const int filter = row - column + Tile::result(column / 8, column % 8);
      const T* const from = static_cast<const T*>(p.w) + (filter * Tile::kWeightChunks + chunk) * 8;
      copy_or_zero_async<16>(to + Tile::place_of_weights(row, chunk), from, true);
    }
  }

  // Asks for the inputs that a tile sees, and zeros outside of the image.
  __device__ void bring(const Place& at, unsigned char* to) const {
    const T* const image = static_cast<const T*>(p.x) + static_cast<int64_t>(at.image) * p.height * p.width * p.x_pixel;
    const int top = at.top * W::kStrideDown - p.pad_top;
    const int left = at.left * W::kStrideAcross - p.pad_left;
#pragma unroll 4
    for (int k = threadIdx.x; k < Tile::kPixels * Tile::kChunks; k += Tile::kThreads) {
      const int pixel = k / Tile::kChunks, chunk = k % Tile::kChunks;
      const int row = pixel / Tile::kColumns;
      const int column = pixel - row * Tile::kColumns, h = top + row, w = left + column;
      const bool exists = static_cast<unsigned>(h) < static_cast<unsigned>(p.height) &&
                          static_cast<unsigned>(w) < static_cast<unsigned>(p.width);
      const T* const from = exists ? image + (static_cast<int64_t>(h) * p.width + w) * p.x_pixel + chunk * 8 : image;
      copy_or_zero_async<16>(to + Tile::place_of_image(row, column, chunk), from, exists);
    }
  }

  // The filter of a lane's first sum of a tile of columns.
  __device__ int filter(int tile) const {
    const int part = threadIdx.x / 32 % Tile::kParts;
    return part * Tile::kWarpFilters + Tile::result(tile, lane % 4 * 2);
  }

  __device__ void start(Sums& sums) const {
#pragma unroll
    for (int j = 0; j < Tile::kTiles; ++j) {
      float bias[2] = {};
      if constexpr (Steps::kBias) {
        const auto pair = load_vector<T, 2>(static_cast<const T*>(p.bias) + filter(j));
        bias[0] = widen(pair.at[0]);
        bias[1] = widen(pair.at[1]);
      }
#pragma unroll
      for (int i = 0; i < Tile::kProducts; ++i) {
#pragma unroll
        for (int k = 0; k < 4; ++k) sums.at[i][j][k] = bias[k % 2];
      }
    }
  }

  // The results of a lane for one output and kCount tiles of columns from kFirst on.
  template <int kFirst, int kCount>
  __device__ void write_group(const Sums& sums, int i, int half, int64_t pixel) const {
    const int first = filter(kFirst);
    Vector<T, 2 * kCount> residual{}, results;
    Vector<T, 2 * kCount> slope{};
    if constexpr (Steps::kResidual) {
      residual = load_vector<T, 2 * kCount>(static_cast<const T*>(p.residual) + pixel * p.residual_pixel + first);
    }
    if constexpr (Steps::kActivation == ConvolutionActivation::kPrelu) {
      slope = load_vector<T, 2 * kCount>(static_cast<const T*>(p.slope) + first);
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      float y[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float added = Steps::kResidual ? widen(residual.at[2 * j + k]) : 0.0f;
        const float value = Steps::kActivation == ConvolutionActivation::kPrelu ? widen(slope.at[2 * j + k]) : p.value;
        float v = sums.at[i][kFirst + j][2 * half + k];
        if constexpr (Steps::kResidual && !Steps::kResidualLast) v += added;
        v = activate<Steps::kActivation>(v, value);
        if constexpr (Steps::kResidualLast) v += added;
        y[k] = v;
      }
      word(results, j) = narrow_pair<T>(y[0], y[1]);
    }
    store_at_once(static_cast<T*>(p.y) + pixel * p.y_pixel + first, results);
  }

  template <int kFirst>
  __device__ void write_groups(const Sums& sums, int i, int half, int64_t pixel) const {
    if constexpr (kFirst < Tile::kTiles) {
      constexpr int kCount = Tile::group_tiles(kFirst);
      write_group<kFirst, kCount>(sums, i, half, pixel);
      write_groups<kFirst + kCount>(sums, i, half, pixel);
    }
  }

  __device__ void write(const Place& at, const Sums& sums) const {
#pragma unroll
    for (int i = 0; i < Tile::kProducts; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int output = half * 8 + lane / 4;  // of the product
        const int h = at.top + (warp * Tile::kProducts + i) * Tile::kProductRows + output / Tile::kAcross;
        const int w = at.left + output % Tile::kAcross;
        if (h >= p.out_height || w >= p.out_width) continue;
        const int64_t row = static_cast<int64_t>(at.image) * p.out_height + h;
        write_groups<0>(sums, i, half, row * p.out_width + w);
      }
    }
  }

  __device__ void run() const {
    unsigned char* const weights = dynamic_shared();
    unsigned char* const images = weights + Tile::kWeightsBytes;
    unsigned tile = blockIdx.x;
    bring_weights(weights);  // constants, which no kernel writes
    begin_early();
    bring(place(tile), images);
    for (int buffer = 0; tile < p.tiles; buffer ^= 1) {
      wait_for_copies();
      __syncthreads();
      const unsigned next = tile + gridDim.x;
      if (next < p.tiles) bring(place(next), images + (buffer ^ 1) * Tile::kImageBytes);
      Sums sums;
      start(sums);
      Products::multiply(shared_address(images + buffer * Tile::kImageBytes), shared_address(weights), sums);
      write(place(tile), sums);
      tile = next;
    }
  }
};

template <typename Steps, typename Tile>
__device__ inline void dense_convolution(const DenseConvolutionParams& params) {
  const DenseConvolution<Steps, Tile> convolution{params};
  convolution.run();
}

}  // namespace onnxopt
