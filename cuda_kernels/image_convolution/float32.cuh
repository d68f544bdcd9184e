// Dense convolution of images of one to four channels in float32, on the matrix units, NHWC results.
//
// It divides its work as the one of 16 bits does. A pixel is 16 bytes here, so every output may begin at any pixel. Of
// pixels that lie kStrideAcross apart, what neighbouring outputs see of a tap lies side by side.
//
// TF32 keeps 11 bits of an operand. With kExact every operand is two of them, what it rounds to and what is left, and a
// product is three: what is missing is 2^-21 of it. Without kExact operands are rounded once, as cuDNN does where the
// option use_tf32 of the provider allows it.
//
// A tile with an input that is infinite or not a number is computed without products, and so is every tile of a GPU
// that has no TF32.
#pragma once

#include "device/approximate.cuh"
#include "device/dynamic_shared.cuh"
#include "device/early_launch.cuh"
#include "device/index.cuh"
#include "device/load_or_zero.cuh"
#include "device/matrix_words.cuh"
#include "device/scalar.cuh"
#include "device/vector.cuh"
#include "image_convolution/abi.h"
#include "image_convolution/float32_tile.cuh"
#include "image_convolution/place.cuh"
#include "image_convolution/prologue.cuh"

namespace onnxopt {

template <typename Op, typename Tile, bool kExact>
struct ImageProductsOfFloat32 {
  using Params = ImageConvolutionParams;
  using W = typename Op::W;
  using Before = InFront<Op>;
  using Image = typename Before::Image;
  using After = typename Op::After;
  static constexpr int kChannels = Op::kChannels;
  static constexpr int kPieces = Op::kFilters / Tile::kFilters;  // blocks that share a tile
  static_assert(Op::kFilters % Tile::kFilters == 0 && kChannels <= 4 && Op::kWeightChannels <= 4, "as the host chose");
  static constexpr int kPixels = Tile::kRows * Tile::kColumns;
  static constexpr int kLoads = (kPixels + Tile::kThreads - 1) / Tile::kThreads;  // of a thread
  static constexpr int kMost = 6;                                                 // at once
  static constexpr int kBatches = (kLoads + kMost - 1) / kMost;
  static constexpr int kBatch = (kLoads + kBatches - 1) / kBatches;
  static constexpr int kOutputsAtOnce = 8;  // of a thread without products

  __device__ static uint32_t operand(float x) { return kExact ? __float_as_uint(x) : tf32(x); }

  __device__ static uint32_t weight(const Params& p, int filter, int tap, int c) {
    if (tap >= W::kTaps || c >= Op::kWeightChannels) return 0;
    const int64_t at = (static_cast<int64_t>(filter) * W::kTaps + tap) * Op::kWeightChannels + c;
    return operand(static_cast<const float*>(p.input[Op::kWeight])[at]);
  }

  // As lanes take them: for each step and pair of tiles, 16 bytes a lane.
  __device__ static void write_weights(const Params& p, int first_filter, uint32_t* weights) {
    const int lane = threadIdx.x % 32;
#pragma unroll 2
    for (int k = threadIdx.x / 32; k < Tile::kSteps * Tile::kTilePairs; k += Tile::kWarps) {
      const int tiles = k % Tile::kTilePairs * 2;
      Vector<uint32_t, 4> words;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int tile = tiles + i / 2;
        const int filter = first_filter + Tile::filter(tile, lane / 4);
        words.at[i] = tile < Tile::kTiles ? weight(p, filter, k / Tile::kTilePairs * 2 + i % 2, lane % 4) : 0;
      }
      store_vector(weights + (k * 32 + lane) * 4, words);
    }
  }

  // What the sums of a quarter of a lane's columns begin with, one quarter behind the other.
  __device__ static void write_starts(const Params& p, int first_filter, float* starts) {
    for (int k = threadIdx.x; k < Tile::kFilters; k += Tile::kThreads) {
      const int quarter = k / (2 * Tile::kTiles);
      const int of_quarter = k % (2 * Tile::kTiles);
      const int filter = Tile::filter(of_quarter / 2, 2 * quarter + of_quarter % 2);
      starts[k] = After::channel(p, first_filter + filter).start;
    }
  }

  // Brings the inputs that a tile sees to shared memory. Returns whether one is infinite or not a number.
  __device__ static bool fetch(const Params& p, const ImagePlace& at, unsigned char* shared) {
    const int64_t pixels = static_cast<int64_t>(p.height) * p.width;
    const Image* const image = static_cast<const Image*>(p.input[Op::kX]) + at.image * pixels * kChannels;
    const int top = at.top * W::kStrideDown - p.pad_top;
    const int left = at.left * W::kStrideAcross - p.pad_left;
    bool special = false;
#pragma unroll
    for (int batch = 0; batch < kBatches; ++batch) {
      Image x[kBatch][kChannels];
      bool inside[kBatch];
#pragma unroll
      for (int s = 0; s < kBatch; ++s) {
        const int pixel = threadIdx.x + (batch * kBatch + s) * Tile::kThreads;
        const int row = pixel / Tile::kColumns;
        const int h = top + row;
        const int w = left + pixel - row * Tile::kColumns;
        inside[s] = pixel < kPixels && static_cast<unsigned>(h) < static_cast<unsigned>(p.height) &&
                    static_cast<unsigned>(w) < static_cast<unsigned>(p.width);
        const uint64_t from = static_cast<uint64_t>(static_cast<unsigned>(h)) * p.width + static_cast<unsigned>(w);
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
          const uint64_t element = Op::kPlanes ? c * static_cast<uint64_t>(pixels) + from : from * kChannels + c;
          x[s][c] = load_or_zero<Image, 1>(image + element, inside[s]).at[0];
        }
      }
#pragma unroll
      for (int s = 0; s < kBatch; ++s) {
        const int pixel = threadIdx.x + (batch * kBatch + s) * Tile::kThreads;
        if (pixel >= kPixels) break;
        Vector<uint32_t, 4> words{};
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
          const float made = inside[s] ? Before::convolved(p, c, x[s][c]) : 0.0f;
          special |= !(::fabsf(made) < infinity());
          words.at[c] = operand(made);
        }
        const int row = pixel / Tile::kColumns;
        const int place = row * Tile::kRowBytes + Tile::column_bytes(pixel - row * Tile::kColumns);
        store_vector(reinterpret_cast<uint32_t*>(shared + place), words);
      }
    }
    return special;
  }

  // Where what the output of this lane in the warp's first product sees begins.
  __device__ static uint32_t first_row(uint32_t image) {
    const int output = threadIdx.x / 32 * 16 * Tile::kProducts + threadIdx.x % 16;
    return image + Tile::output_bytes(output);
  }

  struct Sums {
    float at[Tile::kProducts][Tile::kTiles][4];
  };

  // sums += a b, b two words of a lane.
  __device__ static void add(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&rest)[4],
                             const uint32_t (&b)[2], const uint32_t (&rest_of_b)[2]) {
    if constexpr (kExact) {
      ProductOfTf32::add(sums, rest, b[0], b[1]);
      ProductOfTf32::add(sums, a, rest_of_b[0], rest_of_b[1]);
    }
    ProductOfTf32::add(sums, a, b[0], b[1]);
  }

  // Leaves of each operand what it rounds to, and what is missing then.
  template <int kCount>
  __device__ static void split(uint32_t (&x)[kCount], uint32_t (&rest)[kCount]) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const uint32_t near = tf32(__uint_as_float(x[k]));
      rest[k] = __float_as_uint(__uint_as_float(x[k]) - __uint_as_float(near));
      x[k] = near;
    }
  }

  __device__ static void multiply(const uint32_t* weights, const float* starts, uint32_t rows, Sums& sums) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < Tile::kTiles; ++j) {
      const float* const start = starts + lane % 4 * 2 * Tile::kTiles + 2 * j;
#pragma unroll
      for (int i = 0; i < Tile::kProducts; ++i) {
#pragma unroll
        for (int k = 0; k < 4; ++k) sums.at[i][j][k] = start[k % 2];
      }
    }
#pragma unroll
    for (int step = 0; step < Tile::kSteps; ++step) {
      uint32_t a[Tile::kProducts][4], rest[Tile::kProducts][4];
      const uint32_t from = rows + (lane >= 16 ? Tile::tap_bytes(2 * step + 1) : Tile::tap_bytes(2 * step));
#pragma unroll
      for (int i = 0; i < Tile::kProducts; ++i) {
        load_matrices(a[i], from + Tile::product_bytes(i));
        if constexpr (kExact) split(a[i], rest[i]);
      }
#pragma unroll
      for (int pair = 0; pair < Tile::kTilePairs; ++pair) {
        const auto both = load_vector<uint32_t, 4>(weights + ((step * Tile::kTilePairs + pair) * 32 + lane) * 4);
#pragma unroll
        for (int second = 0; second < 2; ++second) {
          if (2 * pair + second >= Tile::kTiles) continue;
          uint32_t b[2] = {both.at[2 * second], both.at[2 * second + 1]}, rest_of_b[2];
          if constexpr (kExact) split(b, rest_of_b);
#pragma unroll
          for (int i = 0; i < Tile::kProducts; ++i) {
            add(sums.at[i][(2 * pair + second) % Tile::kTiles], a[i], rest[i], b, rest_of_b);
          }
        }
      }
    }
  }

  __device__ static float* result(const Params& p, const ImagePlace& at, int h, int w, int filter) {
    const int64_t row = static_cast<int64_t>(at.image) * p.out_height + h;
    return static_cast<float*>(p.y) + (row * p.out_width + w) * Op::kFilters + filter;
  }

  // The results of a lane for one output, tile pair by tile pair.
  __device__ static void write_output(const Params& p, const Sums& sums, int i, int half, int filter, float* y) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int first = 0; first < Tile::kTiles; first += 2) {
      constexpr int kTiles = Tile::kTiles;
      const int behind = Tile::filter(first, lane % 4 * 2);
      float results[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (first + k / 2 >= kTiles) continue;
        const typename After::Of of = After::channel(p, filter + behind + k);
        results[k] = After::apply(sums.at[i][(first + k / 2) % kTiles][2 * half + k % 2], of);
      }
      if (first + 1 < kTiles) {
        store_vector(y + behind, Vector<float, 4>{{results[0], results[1], results[2], results[3]}});
      } else {
        store_vector(y + behind, Vector<float, 2>{{results[0], results[1]}});
      }
    }
  }

  __device__ static void write(const Params& p, const ImagePlace& at, const Sums& sums, int filter) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < Tile::kProducts; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int output = (threadIdx.x / 32 * Tile::kProducts + i) * 16 + half * 8 + lane / 4;
        const int h = at.top + output / Tile::kAcross;
        const int w = at.left + output % Tile::kAcross;
        if (h >= p.out_height || w >= p.out_width) continue;
        write_output(p, sums, i, half, filter, result(p, at, h, w, filter));
      }
    }
  }

  // By multiplications and additions alone, of what shared memory holds: a thread sums one filter of some neighbours.
  __device__ static void write_without_products(const Params& p, const ImagePlace& at, int first_filter,
                                                const uint32_t* weights, const unsigned char* image) {
#pragma unroll 1
    for (int k = threadIdx.x; k < Tile::kOutputs / kOutputsAtOnce * Tile::kFilters; k += Tile::kThreads) {
      const int tile = k % Tile::kFilters / 8, column = k % 8;
      const int filter = first_filter + Tile::filter(tile, column);
      const int output = k / Tile::kFilters * kOutputsAtOnce;
      const typename After::Of of = After::channel(p, filter);
      float sums[kOutputsAtOnce];
#pragma unroll
      for (float& sum : sums) sum = of.start;
#pragma unroll 1
      for (int tap = 0; tap < W::kTaps; ++tap) {
        const uint32_t* const word =
            weights + ((tap / 2 * Tile::kTilePairs + tile / 2) * 32 + column * 4) * 4 + tile % 2 * 2 + tap % 2;
        float w[kChannels];
#pragma unroll
        for (int c = 0; c < kChannels; ++c) w[c] = __uint_as_float(word[4 * c]);
        const unsigned char* const row = image + Tile::output_bytes(output) + Tile::tap_bytes(tap);
#pragma unroll
        for (int i = 0; i < kOutputsAtOnce; ++i) {
          const auto x = load_vector<uint32_t, 4>(reinterpret_cast<const uint32_t*>(row + i * kFloat32PixelBytes));
#pragma unroll
          for (int c = 0; c < kChannels; ++c) sums[i] = ::fmaf(__uint_as_float(x.at[c]), w[c], sums[i]);
        }
      }
      const int h = at.top + output / Tile::kAcross;
#pragma unroll
      for (int i = 0; i < kOutputsAtOnce; ++i) {
        const int w = at.left + output % Tile::kAcross + i;
        if (h < p.out_height && w < p.out_width) *result(p, at, h, w, filter) = After::apply(sums[i], of);
      }
    }
    __syncthreads();  // the next tile's inputs come to where these were
  }

  __device__ static void run(const Params& p) {
    unsigned char* const shared = dynamic_shared();
    uint32_t* const weights = reinterpret_cast<uint32_t*>(shared);
    float* const starts = reinterpret_cast<float*>(shared + Tile::kWeightsBytes);
    unsigned char* const image = shared + Tile::kWeightsBytes + Tile::kFilters * 4;
    const int filter = static_cast<int>(blockIdx.x % kPieces) * Tile::kFilters;
    write_weights(p, filter, weights);  // constants, which no kernel writes
    write_starts(p, filter, starts);
    begin_early();
    const uint32_t rows = first_row(shared_address(image));
#pragma unroll 1
    for (unsigned tile = blockIdx.x / kPieces; tile < p.tiles; tile += p.step) {
      const ImagePlace at = image_place<Tile>(p, tile);
      const bool special = fetch(p, at, image);
      if (__syncthreads_or(special || p.plain != 0 || !kDeepProducts)) {
        write_without_products(p, at, filter, weights, image);
      } else if constexpr (kDeepProducts) {
        Sums sums;
        multiply(weights, starts, rows, sums);
        __syncthreads();  // the next tile's inputs come to where these were
        write(p, at, sums, filter);
      }
    }
  }
};

}  // namespace onnxopt
