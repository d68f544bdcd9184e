// Depthwise convolution of what a 1x1 convolution computes, NHWC, 16-bit floats, float32 sums: the tensor between the
// two, which has several times the channels of the first one's input, is never stored.
//
// A block takes a tile of outputs of one image. It brings the narrow inputs that the tile sees to shared memory once.
// Then, for some of the wide channels after the other, its warps multiply all these pixels by the 1x1 weights on the
// matrix units, round, apply the program in between, put zeros where the pixel is padding, and leave the results in
// shared memory; its threads sum what each output sees there, apply the program behind, and store. Several blocks may
// share a tile, each with its own channels.
//
// Op is as for held.cuh; Before is the program in between. Op::Expansion has kWeight, the position of the 1x1 weight
// [channels, kInputs], and start(params, c), what a sum of the product starts from. Weights are aligned to 16 bytes.
#pragma once

#include "depthwise/abi.h"
#include "depthwise/expanded_tile.cuh"
#include "device/approximate.cuh"
#include "device/dynamic_shared.cuh"
#include "device/early_launch.cuh"
#include "device/index.cuh"
#include "device/load_or_zero.cuh"
#include "device/matrix_words.cuh"
#include "device/scalar.cuh"
#include "device/vector.cuh"

namespace onnxopt {

template <typename Op, typename W, typename Tile>
struct Expanded {
  using Params = DepthwiseParams;
  using Place = ExpandedPlace;
  using T = typename Op::Stored;
  using Result = typename Op::Result;
  using Before = typename Op::Before;
  using After = typename Op::After;
  static constexpr int kVector = Tile::kVector;
  static constexpr int kLoads = (Tile::kSlots * Tile::kOctets + Tile::kThreads - 1) / Tile::kThreads;  // of a thread
  static constexpr int kMost = 6;                                                                      // at once
  static constexpr int kBatches = (kLoads + kMost - 1) / kMost;
  static constexpr int kBatch = (kLoads + kBatches - 1) / kBatches;
  static_assert(Tile::kInputs == Op::Expansion::kInputs && !After::kNear, "as the host chose");

  template <typename E>
  __device__ static bool aligned(const void* data, int elements) {
    return reinterpret_cast<uint64_t>(data) % (sizeof(E) * elements) == 0;
  }

  // Brings the narrow inputs to shared memory. Those outside the image are zeros, which nothing uses.
  __device__ static void fetch(const Params& p, const Place& at, unsigned char* narrow) {
    const T* const x = static_cast<const T*>(p.input[Op::kX]);
    const bool plain = !aligned<T>(x, 8);
    const int64_t first = static_cast<int64_t>(at.image) * p.height + at.top;
#pragma unroll
    for (int batch = 0; batch < kBatches; ++batch) {
      Vector<T, 8> loaded[kBatch];
#pragma unroll
      for (int s = 0; s < kBatch; ++s) {
        const int i = threadIdx.x + (batch * kBatch + s) * Tile::kThreads;
        const int pixel = i / Tile::kOctets;
        const int row = pixel / Tile::kColumns;
        const int column = pixel % Tile::kColumns;
        const bool inside = pixel < Tile::kSlots && is_inside(p, at, row, column);
        const T* const data = x + ((first + row) * p.width + at.left + column) * Tile::kInputs + i % Tile::kOctets * 8;
        if (plain) {
#pragma unroll
          for (int j = 0; j < 8; ++j) loaded[s].at[j] = inside ? data[j] : T{0};
        } else {
          loaded[s] = load_or_zero<T, 8>(data, inside);
        }
      }
#pragma unroll
      for (int s = 0; s < kBatch; ++s) {
        const int i = threadIdx.x + (batch * kBatch + s) * Tile::kThreads;
        const int pixel = i / Tile::kOctets;
        if (pixel >= Tile::kSlots) break;
        const int slot = Tile::slot(pixel / Tile::kColumns, pixel % Tile::kColumns);
        store_vector(reinterpret_cast<T*>(narrow + slot * Tile::kInPitch + i % Tile::kOctets * 16), loaded[s]);
      }
    }
  }

  __device__ static bool is_inside(const Params& p, const Place& at, int row, int column) {
    return static_cast<unsigned>(at.top + row) < static_cast<unsigned>(p.height) &&
           static_cast<unsigned>(at.left + column) < static_cast<unsigned>(p.width);
  }

  // What a lane needs for the products of a round's channels. Channels behind the last one are that one again.
  struct Weights {
    uint32_t b[Tile::kOctets][Tile::kTiles];
    float start[Tile::kTiles][2];
    typename Before::Of of[Tile::kTiles][2];
  };

  __device__ static void load(const Params& p, int first, Weights& weights) {
    const int lane = threadIdx.x % 32;
    const T* const data = static_cast<const T*>(p.input[Op::Expansion::kWeight]);
#pragma unroll
    for (int j = 0; j < Tile::kTiles; ++j) {
      const int channel = min(first + Tile::channel(j, lane / 4), p.channels - 1);
      const T* const row = data + channel * Tile::kInputs + lane % 4 * 2;
      if constexpr (has_products<T>()) {
#pragma unroll
        for (int k = 0; k < Tile::kOctets; ++k) {
          const Vector<T, 2> pair = load_vector<T, 2>(row + 8 * k);
          weights.b[k][j] = word(pair, 0);
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int own = min(first + Tile::channel(j, lane % 4 * 2 + i), p.channels - 1);
        weights.start[j][i] = Op::Expansion::start(p, own);
        weights.of[j][i] = Before::channel(p, own);
      }
    }
  }

  struct Sums {
    float at[Tile::kTiles][4];
  };

  __device__ static void multiply(uint32_t rows, const Weights& weights, Sums& sums) {
#pragma unroll
    for (int k = 0; k < 4 * Tile::kTiles; ++k) sums.at[k / 4][k % 4] = weights.start[k / 4][k % 2];
#pragma unroll
    for (int step = 0; step < Tile::kSteps; ++step) {
      uint32_t a[4];
      load_matrices(a, rows + 32 * step);
#pragma unroll
      for (int j = 0; j < Tile::kTiles; ++j) {
        Product<T>::add(sums.at[j], a, weights.b[2 * step][j], weights.b[2 * step + 1][j], sums.at[j]);
      }
    }
    if constexpr (Tile::kOddOctet) {
      uint32_t a[2];
      load_matrices(a, rows + 32 * Tile::kSteps);
#pragma unroll
      for (int j = 0; j < Tile::kTiles; ++j) {
        Product<T>::add(sums.at[j], a, weights.b[Tile::kOctets - 1][j], sums.at[j]);
      }
    }
  }

  // The same sums where the GPU has no products of the dtype.
  __device__ static void multiply_plainly(const Params& p, int first, const unsigned char* rows, const Weights& weights,
                                          Sums& sums) {
    const int lane = threadIdx.x % 32;
    const T* const data = static_cast<const T*>(p.input[Op::Expansion::kWeight]);
#pragma unroll 1
    for (int k = 0; k < 4 * Tile::kTiles; ++k) {
      const int channel = min(first + Tile::channel(k / 4, lane % 4 * 2 + k % 2), p.channels - 1);
      const T* const row = reinterpret_cast<const T*>(rows + (lane / 4 + k % 4 / 2 * 8) * Tile::kInPitch);
      float sum = Op::Expansion::start(p, channel);
#pragma unroll 1
      for (int c = 0; c < Tile::kInputs; ++c) {
        sum = ::fmaf(widen(row[c]), widen(data[channel * Tile::kInputs + c]), sum);
      }
#pragma unroll
      for (int i = 0; i < 4 * Tile::kTiles; ++i) {
        if (i == k) sums.at[i / 4][i % 4] = sum;
      }
    }
  }

  // Two results of a product as the graph stores them behind the program in between.
  __device__ static uint32_t between(float low, float high, const typename Before::Of (&of)[2]) {
    const uint32_t rounded = narrow_pair<T>(low, high);
    if constexpr (Before::kNothing) return rounded;
    const float x[2] = {widen(T{static_cast<uint16_t>(rounded)}), widen(T{static_cast<uint16_t>(rounded >> 16)})};
    return narrow_pair<T>(Before::apply(x[0], of[0]), Before::apply(x[1], of[1]));
  }

  // A lane's results of a pixel, from tile kFirst on, one group of tiles after the other.
  template <int kFirst>
  __device__ static void leave(const Sums& sums, const Weights& weights, int half, bool inside, unsigned char* slot) {
    if constexpr (kFirst < Tile::kTiles) {
      constexpr int kCount = Tile::group_tiles(kFirst);
      Vector<T, 2 * kCount> results;
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const float (&pair)[4] = sums.at[kFirst + j];
        const uint32_t both = between(pair[2 * half], pair[2 * half + 1], weights.of[kFirst + j]);
        word(results, j) = inside ? both : 0;
      }
      store_vector(reinterpret_cast<T*>(slot) + Tile::channel(kFirst, threadIdx.x % 4 * 2), results);
      leave<kFirst + kCount>(sums, weights, half, inside, slot);
    }
  }

  __device__ static void expand(const Params& p, const Place& at, int first, const Weights& weights,
                                unsigned char* narrow, unsigned char* plane) {
    const int lane = threadIdx.x % 32;
    const bool whole = at.whole<Tile>(p);
    const uint32_t rows = shared_address(narrow) + lane % 16 * Tile::kInPitch + lane / 16 * 16;
#pragma unroll 1
    for (int k = threadIdx.x / 32; k < Tile::kProducts; k += Tile::kWarps) {
      const int last = at.top + Tile::row_of(16 * k + 15);
      const bool any = whole || (last >= 0 && at.top + Tile::row_of(16 * k) < p.height);  // one for the warp
      Sums sums{};
      if constexpr (has_products<T>()) {
        if (any) multiply(rows + 16 * k * Tile::kInPitch, weights, sums);
      } else {
        if (any) multiply_plainly(p, first, narrow + 16 * k * Tile::kInPitch, weights, sums);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int slot = 16 * k + 8 * half + lane / 4;
        const bool inside = whole || is_inside(p, at, Tile::row_of(slot), Tile::column_of(slot));
        if (any) {
          leave<0>(sums, weights, half, inside, plane + slot * Tile::kPitch);
        } else {
          clear<0>(plane + slot * Tile::kPitch);
        }
      }
    }
  }

  template <int kFirst>
  __device__ static void clear(unsigned char* slot) {
    if constexpr (kFirst < Tile::kTiles) {
      constexpr int kCount = Tile::group_tiles(kFirst);
      const Vector<T, 2 * kCount> zeros{};
      store_vector(reinterpret_cast<T*>(slot) + Tile::channel(kFirst, threadIdx.x % 4 * 2), zeros);
      clear<kFirst + kCount>(slot);
    }
  }

  // A thread's weights of the depthwise convolution.
  struct Taps {
    Vector<T, kVector> at[W::kTaps];
  };

  __device__ static int own_group() { return static_cast<int>(threadIdx.x) % Tile::kGroups; }

  __device__ static void load(const Params& p, int channel, Taps& taps) {
    const T* const data = static_cast<const T*>(p.input[Op::kWeight]) + min(channel, p.channels - kVector);
#pragma unroll
    for (int k = 0; k < W::kTaps; ++k) {
      taps.at[k] = load_vector<T, kVector>(data + static_cast<int64_t>(k) * p.channels);
    }
  }

  // The sums of a strip of outputs. plane: where the first one sees the first pixel.
  __device__ static void convolve(const unsigned char* plane, const Taps& taps, const typename After::Of (&of)[kVector],
                                  float (&sum)[Tile::kStrip][kVector]) {
#pragma unroll
    for (int k = 0; k < Tile::kStrip * kVector; ++k) sum[k / kVector][k % kVector] = of[k % kVector].start;
#pragma unroll
    for (int row = 0; row < W::rows(Tile::kStrip); ++row) {
#pragma unroll
      for (int s = 0; s < W::kWidth; ++s) {
        const auto x = load_vector<T, kVector>(reinterpret_cast<const T*>(plane + Tile::slot(row, s) * Tile::kPitch));
#pragma unroll
        for (int i = 0; i < Tile::kStrip; ++i) {
          const int r = row - i * W::kStrideDown;
          if (r < 0 || r >= W::kHeight) continue;
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            sum[i][v] = ::fmaf(widen(x.at[v]), widen(taps.at[r * W::kWidth + s].at[v]), sum[i][v]);
          }
        }
      }
    }
  }

  // Stores a strip's results. total: the sums of what is stored.
  __device__ static void write(const Params& p, const Place& at, int top, int left, int channel,
                               const typename After::Of (&of)[kVector], const float (&sum)[Tile::kStrip][kVector],
                               float (&total)[kVector]) {
    Result* const y = static_cast<Result*>(p.y);
    const bool plain = !aligned<Result>(y, kVector);
    const int64_t row_elements = static_cast<int64_t>(p.out_width) * p.channels;
    const typename After::template Near<1> nothing{};
    Result* row = y + (static_cast<int64_t>(at.image) * p.out_height + top) * row_elements +
                  static_cast<int64_t>(left) * p.channels + channel;
#pragma unroll
    for (int i = 0; i < Tile::kStrip; ++i) {
      if (top + i >= p.out_height) break;
      Vector<Result, kVector> results;
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        results.at[v] = Narrow<Result>::from(After::apply(sum[i][v], of[v], nothing, 0));
        if constexpr (Op::kSums) total[v] += widen(results.at[v]);
      }
      if (plain) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) row[v] = results.at[v];
      } else {
        store_vector(row, results);
      }
      row += row_elements;
    }
  }

  // The outputs of a round's channels.
  __device__ static void sum_up(const Params& p, const Place& at, int first, const unsigned char* plane,
                                const Taps& taps, float* sums) {
    const int group = own_group();
    const int channel = first + group * kVector;
    if (static_cast<int>(threadIdx.x) >= Tile::kTogether * Tile::kGroups || channel >= p.channels) return;
    typename After::Of of[kVector];
#pragma unroll
    for (int v = 0; v < kVector; ++v) of[v] = After::channel(p, channel + v);
#pragma unroll 1
    for (int position = threadIdx.x / Tile::kGroups; position < Tile::kPositions; position += Tile::kTogether) {
      const int row = position / Tile::kAcross * Tile::kStrip;
      const int column = position % Tile::kAcross;
      float total[kVector] = {};
      if (at.out_top + row < p.out_height && at.out_left + column < p.out_width) {
        const int slot = row * W::kStrideDown * Tile::kColumns + column;
        float sum[Tile::kStrip][kVector];
        convolve(plane + slot * Tile::kPitch + group * kVector * 2, taps, of, sum);
        write(p, at, at.out_top + row, at.out_left + column, channel, of, sum, total);
      }
      if constexpr (Op::kSums) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) sums[position * Tile::kChannels + group * kVector + v] = total[v];
      }
    }
  }

  // The sums of the tile's results, one a channel.
  __device__ static void write_sums(const Params& p, const Place& at, int first, const float* sums) {
    const int64_t tile = static_cast<int64_t>(at.image) * p.grid.outer.divisor + at.tile;
#pragma unroll 1
    for (int c = threadIdx.x; c < Tile::kChannels && first + c < p.channels; c += Tile::kThreads) {
      float total = 0.0f;
#pragma unroll 4
      for (int k = 0; k < Tile::kPositions; ++k) total += sums[k * Tile::kChannels + c];
      p.sums[tile * p.channels + first + c] = total;
    }
  }

  __device__ static void run(const Params& p) {
    unsigned char* const narrow = dynamic_shared();
    unsigned char* const plane = narrow + Tile::kInBytes;
    float* const sums = reinterpret_cast<float*>(plane + Tile::kPlaneBytes);
    const Place at = Place::template of<W, Tile>(p);
    const int step = static_cast<int>(p.grid.inner.divisor) * Tile::kChannels;
    begin_early();
    fetch(p, at, narrow);
    __syncthreads();
#pragma unroll 1
    for (int first = at.piece * Tile::kChannels; first < p.channels; first += step) {
      {
        Weights weights;  // held for the products alone: with the sums below, they would not fit the registers
        load(p, first, weights);
        expand(p, at, first, weights, narrow, plane);
      }
      Taps taps;
      load(p, first + own_group() * kVector, taps);  // before threads wait for each other
      __syncthreads();
      sum_up(p, at, first, plane, taps, sums);
      __syncthreads();
      if constexpr (Op::kSums) write_sums(p, at, first, sums);
    }
  }
};

}  // namespace onnxopt
