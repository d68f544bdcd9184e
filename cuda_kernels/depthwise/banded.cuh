// Depthwise convolution of 16-bit floats on the matrix units, NHWC, float32 sums. For sm_90 and later.
//
// For one channel and one kernel row, eight neighbouring outputs of a row are a product of the inputs they see with a
// banded matrix: out[8] = in[16] B, B[k][n] = w[(k - n * stride) / dilation]. A block takes a tile of outputs of some
// channels. It brings the inputs to shared memory, one plane a channel, transposed on the way (stmatrix); each warp
// multiplies the rows of its own channels by their bands, which stay in registers, applies the program behind, and
// leaves the results in the plane; the block then writes them, 16 bytes a lane. A program that reads tensors of the
// outputs' shape is applied there, to sums rounded as in the graph.
//
// An input that is infinite or not a number would also spoil those outputs that share a product with it, as 0 *
// infinity is NaN. So where a sum is NaN, the block computes its tile once more without products.
//
// Op is as for held.cuh. Channels are a multiple of 8, and tensors are aligned to 16 bytes.
#pragma once

#include "depthwise/abi.h"
#include "depthwise/banded_sums.cuh"
#include "depthwise/banded_tile.cuh"
#include "depthwise/sum_of_output.cuh"
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
struct Banded {
  using Params = DepthwiseParams;
  using Place = BandedPlace;
  using T = typename Op::Stored;
  using Before = typename Op::Before;
  using After = typename Op::After;
  using Sums = BandedSums<T, Tile>;
  using Nothing = typename After::template Near<1>;
  static constexpr int kBand = W::kHeight * Tile::kDepth;
  static constexpr int kSeen = W::rows(Tile::kDown);  // rows of inputs that a segment sees
  static constexpr int kTableSteps = (Tile::kTableRows + Tile::kThreads - 1) / Tile::kThreads;
  static constexpr int kStep = Tile::kWarps * Tile::kTogether;  // rows that a block moves at once
  static constexpr int kInSteps = (Tile::kRows + kStep - 1) / kStep;
  static constexpr int kOutSteps = (Tile::kOutRows + kStep - 1) / kStep;
  static constexpr int kMost = Tile::kPieces < Tile::kOctets ? 1 : Tile::kPieces / Tile::kOctets;  // rows at once
  static constexpr int kBatches = (kInSteps + kMost - 1) / kMost;
  static constexpr int kBatch = (kInSteps + kBatches - 1) / kBatches;

  // A thread's rows of the table of weights.
  struct Weights {
    T at[kTableSteps][W::kWidth];
  };

  // Where a lane's 16 bytes of a row belong, and whose row it gives to a transposed move: lane 8 i + j gives the row of
  // channel 8 chunk + 2 i + j % 2.
  struct Lane {
    int pixel = threadIdx.x % 32 / 4;
    int chunk = threadIdx.x % 4 % Tile::kChunks;
    int row = threadIdx.x / 32 * Tile::kTogether + threadIdx.x % 4 / Tile::kChunks;
    int given_row = threadIdx.x / 32 * Tile::kTogether + threadIdx.x % 8 / 2 / Tile::kChunks;
    int given_plane =
        Tile::plane_of(threadIdx.x % 8 / 2 % Tile::kChunks * 8 + threadIdx.x % 32 / 8 * 2 + threadIdx.x % 2);
  };

  // Row k of the table belongs to kernel row k / kChannels of channel k % kChannels.
  __device__ static Weights read_weights(const Params& p, int first_channel) {
    Weights weights;
    const T* const data = static_cast<const T*>(p.input[Op::kWeight]);
#pragma unroll
    for (int s = 0; s < kTableSteps; ++s) {
      const int row = threadIdx.x + s * Tile::kThreads;
      const int channel = first_channel + row % Tile::kChannels;
      const int64_t first = static_cast<int64_t>(row / Tile::kChannels) * W::kWidth * p.channels + channel;
#pragma unroll
      for (int k = 0; k < W::kWidth; ++k) {
        const bool exists = row < Tile::kTableRows && channel < p.channels;
        weights.at[s][k] = exists ? data[first + static_cast<int64_t>(k) * p.channels] : T{0};
      }
    }
    return weights;
  }

  // A row of the table: 0, then all pairs of neighbours of 0, w[0], (dilation - 1 zeros,) w[1], ..., 0.
  __device__ static void write_table(const Weights& weights, uint32_t* table) {
#pragma unroll
    for (int s = 0; s < kTableSteps; ++s) {
      const int row = threadIdx.x + s * Tile::kThreads;
      if (row >= Tile::kTableRows) break;
      uint32_t* words = table + (row % Tile::kChannels * W::kHeight + row / Tile::kChannels) * Tile::kTableWords;
      words[0] = 0;
      T before{0};
#pragma unroll
      for (int k = 0; k < Tile::kTableWords - 1; ++k) {
        const bool tap = k % W::kDilationAcross == 0 && k / W::kDilationAcross < W::kWidth;
        const T here = tap ? weights.at[s][k / W::kDilationAcross % W::kWidth] : T{0};
        words[k + 1] = pack(before, here);
        before = here;
      }
    }
  }

  __device__ static Vector<T, 8> prepare(Vector<T, 8> x, const typename Before::Of (&of)[8]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      word(x, j) = narrow_pair<T>(Before::apply(widen(x.at[2 * j]), of[2 * j]),
                                  Before::apply(widen(x.at[2 * j + 1]), of[2 * j + 1]));
    }
    return x;
  }

  // Of a row of all images of a tile: its image, and the row of that image's tile.
  template <int kRows>
  __device__ static int image_of(int row) {
    return Tile::kImages == 1 ? 0 : row / kRows;
  }

  struct Inputs {
    Vector<T, 8> at[kBatch][Tile::kOctets];
  };

  // Offsets within the images of a tile have 32 bits.
  __device__ static Inputs fetch(const Params& p, const Lane& lane, const Place& at, int batch) {
    Inputs x;
    const int channel = at.channel + 8 * lane.chunk;
    const int top = at.top * W::kStrideDown - p.pad_top;
    const int left = at.left * W::kStrideAcross - p.pad_left + lane.pixel;
    const unsigned pixel_bytes = p.channels * sizeof(T);
    const unsigned row_bytes = p.width * pixel_bytes;
    const char* const image =
        static_cast<const char*>(p.input[Op::kX]) + static_cast<uint64_t>(at.image) * p.height * row_bytes;
    const unsigned corner = static_cast<unsigned>(left) * pixel_bytes + channel * sizeof(T);
    typename Before::Of of[8];
    if constexpr (!Before::kNothing) {
#pragma unroll
      for (int j = 0; j < 8; ++j) of[j] = Before::channel(p, min(channel + j, p.channels - 1));
    }
#pragma unroll
    for (int s = 0; s < kBatch; ++s) {
      const int row = lane.row + (batch * kBatch + s) * kStep;
      const int of_image = image_of<Tile::kImageRows>(row);
      const int h = top + row - of_image * Tile::kImageRows;
      const bool row_inside = static_cast<unsigned>(h) < static_cast<unsigned>(p.height) && row < Tile::kRows &&
                              of_image < at.images && channel < p.channels;
      const unsigned from = corner + (of_image * p.height + h) * row_bytes;
#pragma unroll
      for (int o = 0; o < Tile::kOctets; ++o) {
        const bool needed = o * 8 + 7 < Tile::kColumns || o * 8 + lane.pixel < Tile::kColumns;
        const unsigned w = needed ? left + o * 8 : -1;
        const bool inside = row_inside && w < static_cast<unsigned>(p.width);
        x.at[s][o] = load_or_zero<T, 8>(image + (from + o * 8 * pixel_bytes), inside);
        if constexpr (!Before::kNothing) {
          if (inside) x.at[s][o] = prepare(x.at[s][o], of);
        }
      }
    }
    return x;
  }

  __device__ static void store(const Inputs& x, uint32_t to, int batch) {
#pragma unroll
    for (int s = 0; s < kBatch; ++s) {
      const int row = (batch * kBatch + s) * kStep;
      if (static_cast<int>(threadIdx.x) / 32 * Tile::kTogether + row >= Tile::kRows) break;
#pragma unroll
      for (int o = 0; o < Tile::kOctets; ++o) {
        const uint32_t words[4] = {word(x.at[s][o], 0), word(x.at[s][o], 1), word(x.at[s][o], 2), word(x.at[s][o], 3)};
        store_matrices_transposed(to + 16 * (row * Tile::kRow + o), words);
      }
    }
  }

  // f(i, r) for every row i of a segment that sees input row `step` through kernel row r.
  template <typename F>
  __device__ static void each_output(int step, const F& f) {
#pragma unroll
    for (int i = 0; i < Tile::kDown; ++i) {
      const int down = step - i * W::kStrideDown;
      if (down >= 0 && down % W::kDilationDown == 0 && down / W::kDilationDown < W::kHeight) {
        f(i, down / W::kDilationDown);
      }
    }
  }

  __device__ static void multiply(uint32_t rows, const uint32_t (&b)[kBand], float start,
                                  float (&sum)[Tile::kDown][4]) {
#pragma unroll
    for (int k = 0; k < 4 * Tile::kDown; ++k) sum[k / 4][k % 4] = start;
#pragma unroll
    for (int step = 0; step < kSeen; ++step) {
#pragma unroll
      for (int e = 0; e < Tile::kDepth; e += 2) {
        const uint32_t from = rows + 16 * (step * Tile::kRow + e);
        if (e + 1 < Tile::kDepth) {
          uint32_t a[4];
          load_matrices(a, from);
          each_output(step, [&](int i, int r) {
            const int at = r * Tile::kDepth + e;
            Product<T>::add(sum[i], a, b[at], b[(at + 1) % kBand], sum[i]);
          });
        } else {
          uint32_t a[2];
          load_matrices(a, from);
          each_output(step, [&](int i, int r) {
            const int at = r * Tile::kDepth + e;
            Product<T>::add(sum[i], a, b[at], sum[i]);
          });
        }
      }
    }
  }

  __device__ static void leave(uint32_t rows, const float (&sum)[Tile::kDown][4]) {
    constexpr int kPairs = Tile::kDown / 2;
    uint32_t words[Tile::kDown][2];
#pragma unroll
    for (int i = 0; i < Tile::kDown; ++i) {
      words[i][0] = narrow_pair<T>(sum[i][0], sum[i][1]);
      words[i][1] = narrow_pair<T>(sum[i][2], sum[i][3]);
    }
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      store_matrices(rows + 32 * i * Tile::kOutRow, words[2 * i][0], words[2 * i][1], words[2 * i + 1][0],
                     words[2 * i + 1][1]);
    }
    if constexpr (Tile::kDown % 2 != 0) {
      store_matrices(rows + 32 * kPairs * Tile::kOutRow, words[Tile::kDown - 1][0], words[Tile::kDown - 1][1]);
    }
  }

  // What a lane needs for the products of its warp's channels.
  struct Own {
    const uint32_t* tap[Tile::kDepth];
    uint32_t in_rows;
    uint32_t out_rows;
    typename After::Of of[Tile::kOwn];
  };

  __device__ static Own own(const Params& p, const uint32_t* table, int first_channel, uint32_t planes) {
    Own own;
    const int lane = threadIdx.x % 32;
    const int in_block = threadIdx.x / 32 * Tile::kOwn;
#pragma unroll
    for (int e = 0; e < Tile::kDepth; ++e) {
      const int pair = e * 8 + lane % 4 * 2 - lane / 4 * W::kStrideAcross + 2;
      const bool inside = pair > 0 && pair < Tile::kTableWords;
      own.tap[e] = table + in_block * W::kHeight * Tile::kTableWords + (inside ? pair : 0);
    }
    const int m = lane % 16;
    const int segment = m / Tile::kAcross;
    const int octet = m % Tile::kAcross;
    const uint32_t plane = planes + 16 * Tile::plane_of(in_block);
    own.in_rows = plane + 16 * (Tile::Rows::segment_row(segment) * Tile::kRow + octet * W::kStrideAcross + lane / 16);
    own.out_rows = plane + 16 * ((segment * Tile::kDown + lane / 16) * Tile::kOutRow + octet);
#pragma unroll
    for (int i = 0; i < Tile::kOwn; ++i)
      own.of[i] = After::channel(p, min(first_channel + in_block + i, p.channels - 1));
    return own;
  }

  // Returns whether a sum is NaN.
  __device__ static bool convolve(const Own& own) {
    bool spoiled = false;
#pragma unroll
    for (int c = 0; c < Tile::kOwn; ++c) {
      uint32_t b[kBand];
#pragma unroll
      for (int k = 0; k < kBand; ++k) {
        b[k] = own.tap[k % Tile::kDepth][(c * W::kHeight + k / Tile::kDepth) * Tile::kTableWords];
      }
      float sum[Tile::kDown][4];
      multiply(own.in_rows + 16 * c * Tile::kOwnPlane, b, own.of[c].start, sum);
#pragma unroll
      for (int i = 0; i < Tile::kDown; ++i) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          spoiled |= sum[i][k] != sum[i][k];
          if constexpr (!After::kNear) sum[i][k] = After::apply(sum[i][k], own.of[c], Nothing(), 0);
        }
      }
      __syncwarp();
      leave(own.out_rows + 16 * c * Tile::kOwnPlane, sum);
    }
    return spoiled;
  }

  // sums: of the results that a lane stores, for each image and each of the lane's channels.
  __device__ static void write_outputs(const Params& p, const Lane& lane, const Place& at, uint32_t from,
                                       float (&sums)[Tile::kImages][8]) {
    static_assert(Tile::kOutRows % Tile::kTogether == 0, "rows of a warp end together");
    const int channel = at.channel + 8 * lane.chunk;
    const unsigned row_elements = static_cast<unsigned>(p.out_width) * p.channels;
    const uint64_t first = static_cast<uint64_t>(at.image) * p.out_height * row_elements;
    const unsigned corner = static_cast<unsigned>(at.left + lane.pixel) * p.channels + channel;
    typename After::Of of[After::kNear ? 8 : 1];
    if constexpr (After::kNear) {
#pragma unroll
      for (int j = 0; j < 8; ++j) of[j] = After::channel(p, min(channel + j, p.channels - 1));
    }
#pragma unroll
    for (int s = 0; s < kOutSteps; ++s) {
      if (static_cast<int>(threadIdx.x) / 32 * Tile::kTogether + s * kStep >= Tile::kOutRows) break;
      const int row = lane.row + s * kStep;
      const int of_image = image_of<Tile::kTileRows>(row);
      const int h = at.top + row - of_image * Tile::kTileRows;
      const bool row_inside = h < p.out_height && of_image < at.images && channel < p.channels;
      const unsigned to = corner + (of_image * p.out_height + h) * row_elements;
#pragma unroll
      for (int o = 0; o < Tile::kAcross; ++o) {
        uint32_t words[4];
        load_matrices_transposed(words, from + 16 * (s * kStep * Tile::kOutRow + o));
        Vector<T, 8> y;
#pragma unroll
        for (int j = 0; j < 4; ++j) word(y, j) = words[j];
        if (row_inside && at.left + lane.pixel + o * 8 < p.out_width) {
          const uint64_t place = first + (to + o * 8 * p.channels);
          if constexpr (After::kNear) {
            const auto near = After::template load<8>(p, static_cast<int64_t>(place));
#pragma unroll
            for (int j = 0; j < 8; ++j) y.at[j] = Narrow<T>::from(After::apply(widen(y.at[j]), of[j], near, j));
          }
          store_vector(static_cast<T*>(p.y) + place, y);
          if constexpr (Op::kSums) {
#pragma unroll
            for (int j = 0; j < 8 * Tile::kImages; ++j) {
              if (Tile::kImages == 1 || of_image == j / 8) sums[j / 8][j % 8] += widen(y.at[j % 8]);
            }
          }
        }
      }
    }
  }

  // A tile with an infinity or NaN. Not inlined: it must cost the others no registers.
  __device__ __noinline__ static void write_without_products(const Params& p) {
    const Place at = BandedPlace::of<Tile>(p);
#pragma unroll 1
    for (int i = threadIdx.x; i < Tile::kOutRows * Tile::kOutColumns * Tile::kChannels; i += Tile::kThreads) {
      const int channel = at.channel + i % Tile::kChannels;
      const int row = i / Tile::kChannels / Tile::kOutColumns;
      const int of_image = row / Tile::kTileRows;
      const int h = at.top + row % Tile::kTileRows;
      const int w = at.left + i / Tile::kChannels % Tile::kOutColumns;
      const bool exists = of_image < at.images && h < p.out_height && w < p.out_width && channel < p.channels;
      if (!exists) continue;
      const int image = at.image + of_image;
      const float sum =
          sum_of<Op, W>(p, image, h * W::kStrideDown - p.pad_top, w * W::kStrideAcross - p.pad_left, channel);
      const int64_t pixel = (static_cast<int64_t>(image) * p.out_height + h) * p.out_width + w;
      const int64_t place = pixel * p.channels + channel;
      const auto near = After::template load<1>(p, place);
      static_cast<T*>(p.y)[place] = Narrow<T>::from(After::apply(sum, After::channel(p, channel), near, 0));
    }
    if constexpr (Op::kSums) Sums::write_stored(p, at);
  }

  __device__ static void run(const Params& p) {
    unsigned char* const shared = dynamic_shared();
    const Place at = BandedPlace::of<Tile>(p);
    const Lane lane;
    const uint32_t planes = shared_address(shared);
    uint32_t* const table = reinterpret_cast<uint32_t*>(shared + Tile::kPlanesBytes);
    const Weights weights = read_weights(p, at.channel);  // constants, which no kernel writes
    begin_early();
    const uint32_t in = planes + 16 * (lane.given_plane + lane.given_row * Tile::kRow);
#pragma unroll
    for (int batch = 0; batch < kBatches; ++batch) store(fetch(p, lane, at, batch), in, batch);
    write_table(weights, table);
    const Own mine = own(p, table, at.channel, planes);
    __syncthreads();
    const bool spoiled = convolve(mine);
    if (__syncthreads_or(spoiled)) {
      write_without_products(p);
    } else {
      float sums[Tile::kImages][8] = {};
      write_outputs(p, lane, at, planes + 16 * (lane.given_plane + lane.given_row * Tile::kOutRow), sums);
      if constexpr (Op::kSums) Sums::write(p, lane.chunk, at, sums, reinterpret_cast<float*>(shared));
    }
  }
};

}  // namespace onnxopt
