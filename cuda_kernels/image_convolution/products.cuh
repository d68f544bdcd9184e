// Dense convolution of images of one to four channels, on the matrix units, float32 sums, NHWC results.
//
// A block keeps the weights of its filters in shared memory and goes through tiles of outputs. It brings the inputs
// that a tile sees to shared memory as [row][pixel][4 channels]. What neighbouring outputs see of a row overlaps, so
// rows of the product's left matrix are read where they lie: two pixels, 16 bytes, for each of 8 outputs. Weights are
// zero where there is no channel or no pixel.
//
// An input that is infinite or not a number would spoil outputs that see it through such a zero, as 0 * infinity is
// NaN. So a tile with one is computed without products.
//
// Op has: Stored, W (a StaticWindow), kX, kWeight, kChannels, kPlanes (x is NCHW), kWeightChannels, kFilters, and After
// with Of, channel() and apply() as for depthwise convolutions. Before, where there is one, has the same and Image, the
// type of an element of x.
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
#include "image_convolution/place.cuh"
#include "image_convolution/prologue.cuh"
#include "image_convolution/tile.cuh"

namespace onnxopt {

template <typename Op, typename Tile>
struct ImageProducts {
  using Params = ImageConvolutionParams;
  using T = typename Op::Stored;
  using W = typename Op::W;
  using Before = InFront<Op>;
  using Image = typename Before::Image;
  using After = typename Op::After;
  static constexpr int kChannels = Op::kChannels;
  static constexpr int kPieces = Op::kFilters / Tile::kFilters;  // blocks that share a tile
  static_assert(Op::kFilters % Tile::kFilters == 0 && kChannels <= 4 && Op::kWeightChannels <= 4, "as the host chose");
  static constexpr int kPixels = Tile::kRows * Tile::kColumns;
  static constexpr int kLoads = (kPixels + Tile::kThreads - 1) / Tile::kThreads;  // of a thread
  static constexpr int kMost = 8;                                                 // at once
  static constexpr int kBatches = (kLoads + kMost - 1) / kMost;
  static constexpr int kBatch = (kLoads + kBatches - 1) / kBatches;

  using Place = ImagePlace;

  // Two neighbouring channels of a weight; zeros where there are none.
  __device__ static uint32_t weight_pair(const Params& p, int filter, int chunk, int of_chunk) {
    const int r = chunk / Tile::kPairs;
    const int s = chunk % Tile::kPairs * 2 + of_chunk / 4;
    const int c = of_chunk % 4;
    const bool exists = chunk < Tile::kChunks && s < W::kWidth && c < Op::kWeightChannels;
    if (!exists) return 0;
    const T* const data = static_cast<const T*>(p.input[Op::kWeight]) +
                          ((filter * W::kHeight + r) * W::kWidth + s) * Op::kWeightChannels + c;
    if constexpr (Op::kWeightChannels == 4) {
      if (!p.plain) {
        Vector<T, 2> pair = load_vector<T, 2>(data);
        return word(pair, 0);
      }
    }
    const bool second = c + 1 < Op::kWeightChannels;
    return pack(data[0], second ? data[1] : T{0});
  }

  // As lanes take them: for each step and pair of tiles, 16 bytes a lane.
  __device__ static void write_weights(const Params& p, int first_filter, unsigned char* weights) {
    const int lane = threadIdx.x % 32;
#pragma unroll 4
    for (int k = threadIdx.x / 32; k < Tile::kSteps * Tile::kTilePairs; k += Tile::kWarps) {
      const int step = k / Tile::kTilePairs;
      const int tiles = k % Tile::kTilePairs * 2;
      Vector<uint32_t, 4> words;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int tile = tiles + i / 2;
        const int filter = first_filter + Tile::filter(tile, lane / 4);
        words.at[i] = tile < Tile::kTiles ? weight_pair(p, filter, 2 * step + i % 2, lane % 4 * 2) : 0;
      }
      store_vector(reinterpret_cast<uint32_t*>(weights) + (k * 32 + lane) * 4, words);
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

  // Added to the bits of a number that is infinite or none, without its sign, this reaches the place of the sign.
  __device__ static constexpr uint32_t exponent_step(float16) { return 0x04000400u; }
  __device__ static constexpr uint32_t exponent_step(bfloat16) { return 0x00800080u; }

  struct Pixel {
    uint32_t low;
    uint32_t high;
  };

  __device__ static Pixel load(const Params& p, const T* image, unsigned at, bool inside) {
    if constexpr (!Op::kPlanes && kChannels == 4) {
      if (!p.plain) {
        const Vector<T, 4> x = load_or_zero<T, 4>(image + static_cast<uint64_t>(at) * 4, inside);
        return {word(x, 0), word(x, 1)};
      }
    }
    T x[4] = {};
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      const uint64_t plane = static_cast<uint64_t>(p.height) * p.width;
      const uint64_t from = Op::kPlanes ? c * plane + at : static_cast<uint64_t>(at) * kChannels + c;
      x[c] = load_or_zero<T, 1>(image + from, inside).at[0];
    }
    return {pack(x[0], x[1]), pack(x[2], x[3])};
  }

  // Brings the inputs that a tile sees to shared memory. Returns whether one is infinite or not a number.
  __device__ static bool fetch(const Params& p, const Place& at, unsigned char* shared) {
    if constexpr (!Before::kNothing) return fetch_through_program(p, at, shared);
    const int64_t pixels = static_cast<int64_t>(p.height) * p.width;
    const T* const image = static_cast<const T*>(p.input[Op::kX]) + at.image * pixels * kChannels;
    const int top = at.top * W::kStrideDown - p.pad_top;
    const int left = at.left * W::kStrideAcross - p.pad_left;
    uint32_t special = 0;
#pragma unroll
    for (int batch = 0; batch < kBatches; ++batch) {
      Pixel x[kBatch];
#pragma unroll
      for (int s = 0; s < kBatch; ++s) {
        const int pixel = threadIdx.x + (batch * kBatch + s) * Tile::kThreads;
        const int row = pixel / Tile::kColumns;
        const int h = top + row;
        const int w = left + pixel - row * Tile::kColumns;
        const bool inside = pixel < kPixels && static_cast<unsigned>(h) < static_cast<unsigned>(p.height) &&
                            static_cast<unsigned>(w) < static_cast<unsigned>(p.width);
        x[s] = load(p, image, static_cast<unsigned>(h) * p.width + w, inside);
      }
#pragma unroll
      for (int s = 0; s < kBatch; ++s) {
        const int pixel = threadIdx.x + (batch * kBatch + s) * Tile::kThreads;
        if (pixel >= kPixels) break;
        store(x[s], pixel, shared);
        special |= ((x[s].low & 0x7fff7fffu) + exponent_step(T{})) | ((x[s].high & 0x7fff7fffu) + exponent_step(T{}));
      }
    }
    return (special & 0x80008000u) != 0;
  }

  // The same where a program makes what is convolved, once all loads are under way.
  __device__ static bool fetch_through_program(const Params& p, const Place& at, unsigned char* shared) {
    const int64_t pixels = static_cast<int64_t>(p.height) * p.width;
    const Image* const image = static_cast<const Image*>(p.input[Op::kX]) + at.image * pixels * kChannels;
    const int top = at.top * W::kStrideDown - p.pad_top;
    const int left = at.left * W::kStrideAcross - p.pad_left;
    const Elements<Before, kChannels> of(p);
    uint32_t special = 0;
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
        const uint64_t from = static_cast<unsigned>(h) * p.width + static_cast<unsigned>(w);
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
        T made[4] = {};
        if (inside[s]) of.convolve(x[s], made);
        const Pixel words{pack(made[0], made[1]), pack(made[2], made[3])};
        store(words, pixel, shared);
        special |= ((words.low & 0x7fff7fffu) + exponent_step(T{})) | ((words.high & 0x7fff7fffu) + exponent_step(T{}));
      }
    }
    return (special & 0x80008000u) != 0;
  }

  __device__ static void store(const Pixel& x, int pixel, unsigned char* shared) {
    const Vector<uint32_t, 2> words{{x.low, x.high}};
    store_vector(reinterpret_cast<uint32_t*>(shared + pixel * kPixelBytes), words);
    if (Tile::kShifted && pixel > 0) {
      store_vector(reinterpret_cast<uint32_t*>(shared + Tile::kCopyBytes + (pixel - 1) * kPixelBytes), words);
    }
  }

  // Where what the output of this lane in the warp's first product sees begins.
  __device__ static uint32_t first_row(uint32_t image) {
    const int lane = threadIdx.x % 32;
    const int output = threadIdx.x / 32 * 16 * Tile::kProducts + lane % 16;
    const int pixel = output % Tile::kAcross * W::kStrideAcross;
    const int in_row =
        Tile::kShifted && pixel % 2 != 0 ? Tile::kCopyBytes + (pixel - 1) * kPixelBytes : pixel * kPixelBytes;
    return image + output / Tile::kAcross * W::kStrideDown * Tile::kRowBytes + in_row;
  }

  // Of the lane's half of a product's depth.
  __device__ static uint32_t step_bytes(int step) {
    const bool second = threadIdx.x % 32 >= 16;
    if constexpr (Tile::kPairs % 2 == 0) return Tile::chunk_bytes(2 * step) + (second ? 2 * kPixelBytes : 0);
    return second ? Tile::chunk_bytes(2 * step + 1) : Tile::chunk_bytes(2 * step);
  }

  struct Sums {
    float at[Tile::kProducts][Tile::kTiles][4];
  };

  __device__ static void multiply(const unsigned char* weights, const float* starts, uint32_t rows, Sums& sums) {
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
      uint32_t a[Tile::kProducts][4];
      const uint32_t from = rows + step_bytes(step);
#pragma unroll
      for (int i = 0; i < Tile::kProducts; ++i) load_matrices(a[i], from + Tile::product_bytes(i));
#pragma unroll
      for (int pair = 0; pair < Tile::kTilePairs; ++pair) {
        const int at = ((step * Tile::kTilePairs + pair) * 32 + lane) * 4;
        const Vector<uint32_t, 4> b = load_vector<uint32_t, 4>(reinterpret_cast<const uint32_t*>(weights) + at);
#pragma unroll
        for (int i = 0; i < Tile::kProducts; ++i) {
          float (&first)[4] = sums.at[i][2 * pair];
          Product<T>::add(first, a[i], b.at[0], b.at[1], first);
          if (2 * pair + 1 < Tile::kTiles) {
            float (&second)[4] = sums.at[i][(2 * pair + 1) % Tile::kTiles];
            Product<T>::add(second, a[i], b.at[2], b.at[3], second);
          }
        }
      }
    }
  }

  // The results of a lane for one output and `kCount` tiles from `kFirst` on.
  template <int kFirst, int kCount>
  __device__ static void write_group(const Params& p, const Sums& sums, int i, int half, int filter, T* y) {
    const int lane = threadIdx.x % 32;
    const int behind = Tile::filter(kFirst, lane % 4 * 2);
    Vector<T, 2 * kCount> results;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      float pair[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const typename After::Of of = After::channel(p, filter + behind + 2 * j + k);
        pair[k] = After::apply(sums.at[i][kFirst + j][2 * half + k], of);
      }
      word(results, j) = narrow_pair<T>(pair[0], pair[1]);
    }
    store_vector(y + behind, results);
  }

  template <int kFirst>
  __device__ static void write_groups(const Params& p, const Sums& sums, int i, int half, int filter, T* y) {
    if constexpr (kFirst < Tile::kTiles) {
      constexpr int kCount = Tile::group_tiles(kFirst);
      write_group<kFirst, kCount>(p, sums, i, half, filter, y);
      write_groups<kFirst + kCount>(p, sums, i, half, filter, y);
    }
  }

  __device__ static T* result(const Params& p, const Place& at, int h, int w, int filter) {
    const int64_t row = static_cast<int64_t>(at.image) * p.out_height + h;
    return static_cast<T*>(p.y) + (row * p.out_width + w) * Op::kFilters + filter;
  }

  __device__ static void write(const Params& p, const Place& at, const Sums& sums, int filter) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < Tile::kProducts; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int output = (threadIdx.x / 32 * Tile::kProducts + i) * 16 + half * 8 + lane / 4;
        const int h = at.top + output / Tile::kAcross;
        const int w = at.left + output % Tile::kAcross;
        if (h >= p.out_height || w >= p.out_width) continue;
        write_groups<0>(p, sums, i, half, filter, result(p, at, h, w, filter));
      }
    }
  }

  // One output, by multiplications and additions alone.
  __device__ static float sum_of(const Params& p, const Place& at, int h, int w, int filter) {
    const Image* const x = static_cast<const Image*>(p.input[Op::kX]);
    const T* const weight = static_cast<const T*>(p.input[Op::kWeight]);
    const int64_t plane = static_cast<int64_t>(p.height) * p.width;
    float sum = After::channel(p, filter).start;
#pragma unroll 1
    for (int k = 0; k < W::kTaps * kChannels; ++k) {
      const int tap = k / kChannels;
      const int c = k % kChannels;
      const int row = h * W::kStrideDown - p.pad_top + tap / W::kWidth;
      const int column = w * W::kStrideAcross - p.pad_left + tap % W::kWidth;
      if (static_cast<unsigned>(row) >= static_cast<unsigned>(p.height)) continue;
      if (static_cast<unsigned>(column) >= static_cast<unsigned>(p.width)) continue;
      const int64_t pixel = static_cast<int64_t>(row) * p.width + column;
      const int64_t from = at.image * plane * kChannels + (Op::kPlanes ? c * plane + pixel : pixel * kChannels + c);
      sum = ::fmaf(widen(Before::convolved(p, c, x[from])),
                   widen(weight[(filter * W::kTaps + tap) * Op::kWeightChannels + c]), sum);
    }
    return sum;
  }

  __device__ static void write_without_products(const Params& p, const Place& at, int first_filter) {
#pragma unroll 1
    for (int k = threadIdx.x; k < Tile::kOutputs * Tile::kFilters; k += Tile::kThreads) {
      const int filter = first_filter + k % Tile::kFilters;
      const int output = k / Tile::kFilters;
      const int h = at.top + output / Tile::kAcross;
      const int w = at.left + output % Tile::kAcross;
      if (h >= p.out_height || w >= p.out_width) continue;
      const float sum = sum_of(p, at, h, w, filter);
      *result(p, at, h, w, filter) = Narrow<T>::from(After::apply(sum, After::channel(p, filter)));
    }
  }

  __device__ static void run(const Params& p) {
    unsigned char* const weights = dynamic_shared();
    float* const starts = reinterpret_cast<float*>(weights + Tile::kWeightsBytes);
    unsigned char* const image = weights + Tile::kWeightsBytes + Tile::kFilters * 4;
    const int filter = static_cast<int>(blockIdx.x % kPieces) * Tile::kFilters;
    write_weights(p, filter, weights);  // constants, which no kernel writes
    write_starts(p, filter, starts);
    begin_early();
    const uint32_t rows = first_row(shared_address(image));
#pragma unroll 1
    for (unsigned tile = blockIdx.x / kPieces; tile < p.tiles; tile += p.step) {
      const Place at = image_place<Tile>(p, tile);
      const bool special = fetch(p, at, image) && Tile::kSeesMore;
      if (__syncthreads_or(special || p.plain != 0 || !has_products<T>())) {
        write_without_products(p, at, filter);
      } else if constexpr (has_products<T>()) {
        Sums sums;
        multiply(weights, starts, rows, sums);
        __syncthreads();  // the next tile's inputs come to where these were
        write(p, at, sums, filter);
      }
    }
  }
};

}  // namespace onnxopt
