// Depthwise convolution of 16-bit floats on the matrix units, NHWC, float32 sums.
//
// For one channel and one kernel row, eight neighbouring outputs of a row are a product of the inputs they see with a
// banded matrix: out[8] = in[16] B, B[k][n] = w[(k - n * stride) / dilation]. A block takes a tile of outputs of some
// channels. It brings the inputs to shared memory, one plane a channel, transposed on the way (stmatrix); each warp
// multiplies the rows of its own channels by their bands, which stay in registers, applies the program behind, and
// leaves the results in the plane; the block then writes them, 16 bytes a lane.
//
// An input that is infinite or not a number also spoils those outputs that share a product with it: 0 * infinity.
#pragma once

#include "banded_tile.cuh"
#include "depthwise_abi.h"
#include "depthwise_ops.cuh"
#include "load_or_zero.cuh"
#include "matrix_words.cuh"
#include "device/vector.cuh"

namespace onnxopt {

template <typename T, typename W, typename Tile, bool kAligned, bool kSums, typename Before, typename After>
struct Banded {
  using Params = DepthwiseParams<T, Before, After>;
  static constexpr int kBand = W::kHeight * Tile::kDepth;
  static constexpr int kSeen = W::rows(Tile::kDown);  // rows of inputs that a segment sees
  static constexpr int kTableSteps = (Tile::kTableRows + Tile::kThreads - 1) / Tile::kThreads;

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

  __device__ static Vector<T, 8> read(const T* data, bool inside, int channels_left) {
    if constexpr (kAligned) return load_or_zero<T, 8>(data, inside);
    Vector<T, 8> x;
#pragma unroll
    for (int j = 0; j < 8; ++j) x.at[j] = inside && j < channels_left ? data[j] : T{0};
    return x;
  }

  __device__ static void write(T* data, const Vector<T, 8>& y, int channels_left) {
    if constexpr (kAligned) {
      store_vector(data, y);
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (j < channels_left) data[j] = y.at[j];
      }
    }
  }

  __device__ static Weights read_weights(const Params& p, int first_channel) {
    Weights weights;
    const int rows = min(Tile::kChannels, p.shape.channels - first_channel) * W::kHeight;
    const T* data = p.weight + static_cast<int64_t>(first_channel) * W::kTaps;
#pragma unroll
    for (int s = 0; s < kTableSteps; ++s) {
      const int row = threadIdx.x + s * Tile::kThreads;
#pragma unroll
      for (int k = 0; k < W::kWidth; ++k) weights.at[s][k] = row < rows ? data[row * W::kWidth + k] : T{0};
    }
    return weights;
  }

  // A row of the table: 0, then all pairs of neighbours of 0, w[0], (dilation - 1 zeros,) w[1], ..., 0.
  __device__ static void write_table(const Weights& weights, uint32_t* table) {
#pragma unroll
    for (int s = 0; s < kTableSteps; ++s) {
      const int row = threadIdx.x + s * Tile::kThreads;
      if (row >= Tile::kTableRows) break;
      uint32_t* words = table + row * Tile::kTableWords;
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

  // Where a tile's outputs begin, and where its inputs do.
  struct Place {
    int tile;   // of its image
    int image;  // the first
    int images;
    int top;
    int left;
  };

  __device__ static int divide(int n, const TileDivisor& by) {
    return static_cast<int>((__umulhi(n, by.multiplier) + n) >> by.shift);
  }

  __device__ static Place place(const DepthwiseShape& shape, int tile) {
    const int group = divide(tile, shape.per_image);
    const int of_image = tile - group * static_cast<int>(shape.per_image.divisor);
    const int down = divide(of_image, shape.per_row);
    const int across = of_image - down * static_cast<int>(shape.per_row.divisor);
    return {of_image, group * Tile::kImages, min(Tile::kImages, shape.batch - group * Tile::kImages),
            down * Tile::kTileRows, across * Tile::kOutColumns};
  }

  // Of a row of all images of a tile: its image, and the row of that image's tile.
  template <int kRows>
  __device__ static int image_of(int row) {
    return Tile::kImages == 1 ? 0 : row / kRows;
  }

  static constexpr int kStep = Tile::kWarps * Tile::kTogether;  // rows that a block moves at once
  static constexpr int kInSteps = (Tile::kRows + kStep - 1) / kStep;
  static constexpr int kOutSteps = (Tile::kOutRows + kStep - 1) / kStep;
  static constexpr bool kAhead =
      !Tile::kOnce && kInSteps * Tile::kOctets <= Tile::kPieces;  // a whole tile is held: the next one's
  static constexpr int kMost = Tile::kPieces < Tile::kOctets ? 1 : Tile::kPieces / Tile::kOctets;  // rows
  static constexpr int kBatches = kAhead ? 1 : (kInSteps + kMost - 1) / kMost;
  static constexpr int kBatch = (kInSteps + kBatches - 1) / kBatches;

  struct Inputs {
    Vector<T, 8> at[kBatch][Tile::kOctets];
  };

  __device__ static Inputs fetch(const Params& p, const Lane& lane, int first_channel, const Place& at, int batch) {
    Inputs x;
    const DepthwiseShape& shape = p.shape;
    const int channel = first_channel + 8 * lane.chunk;
    const int top = at.top * W::kStrideDown - shape.pad_top;
    const int left = at.left * W::kStrideAcross - shape.pad_left + lane.pixel;
    const unsigned pixel_bytes = shape.channels * sizeof(T);
    const unsigned row_bytes = shape.width * pixel_bytes;
    const char* image = reinterpret_cast<const char*>(p.x) + static_cast<uint64_t>(at.image) * shape.height * row_bytes;
    const unsigned corner = static_cast<unsigned>(left) * pixel_bytes + channel * sizeof(T);
    typename Before::Of of[8];
    if constexpr (!Before::kNothing) {
#pragma unroll
      for (int j = 0; j < 8; ++j) of[j] = p.before.channel(min(channel + j, shape.channels - 1));
    }
#pragma unroll
    for (int s = 0; s < kBatch; ++s) {
      const int row = lane.row + (batch * kBatch + s) * kStep;
      const int of_image = image_of<Tile::kImageRows>(row);
      const int h = top + row - of_image * Tile::kImageRows;
      const bool row_inside = static_cast<unsigned>(h) < static_cast<unsigned>(shape.height) && row < Tile::kRows &&
                              of_image < at.images && channel < shape.channels;
      const unsigned from = corner + (of_image * shape.height + h) * row_bytes;
#pragma unroll
      for (int o = 0; o < Tile::kOctets; ++o) {
        const bool needed = o * 8 + 7 < Tile::kColumns || o * 8 + lane.pixel < Tile::kColumns;
        const unsigned w = needed ? left + o * 8 : -1;
        const bool inside = row_inside && w < static_cast<unsigned>(shape.width);
        const char* data = image + (from + o * 8 * pixel_bytes);
        x.at[s][o] = read(reinterpret_cast<const T*>(data), inside, shape.channels - channel);
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

  // Of the outputs of a channel that exist, for each image.
  __device__ static void write_sums(const Params& p, int channel, const Place& place,
                                    const float (&sum)[Tile::kDown][4]) {
    const int lane = threadIdx.x % 32;
    float total[Tile::kImages] = {};
#pragma unroll
    for (int i = 0; i < Tile::kDown; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int m = lane / 4 + k / 2 * 8;
        const int row = m / Tile::kAcross * Tile::kDown + i;
        const int w = place.left + m % Tile::kAcross * 8 + lane % 4 * 2 + k % 2;
        const bool exists = place.top + row % Tile::kTileRows < p.shape.out_height && w < p.shape.out_width;
#pragma unroll
        for (int n = 0; n < Tile::kImages; ++n) {
          total[n] += exists && row / Tile::kTileRows == n ? sum[i][k] : 0.0f;
        }
      }
    }
#pragma unroll
    for (int n = 0; n < Tile::kImages; ++n) {
#pragma unroll
      for (int d = 16; d > 0; d /= 2) total[n] += __shfl_xor_sync(0xffffffffu, total[n], d);
      const int64_t at = static_cast<int64_t>(place.image + n) * p.shape.per_image.divisor + place.tile;
      if (lane == 0 && n < place.images && channel < p.shape.channels)
        p.sums[at * p.shape.channels + channel] = total[n];
    }
  }

  // What a lane needs for the products of its warp's channels.
  struct Own {
    const uint32_t* tap[Tile::kDepth];
    uint32_t in_rows;
    uint32_t out_rows;
    int channel;
    typename After::Of of[Tile::kOwn];
  };

  __device__ static Own own(const Params& p, const uint32_t* table, int first_channel, uint32_t planes) {
    Own own;
    const int lane = threadIdx.x % 32;
    const int in_block = threadIdx.x / 32 * Tile::kOwn;
    own.channel = first_channel + in_block;
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
    own.in_rows = plane + 16 * (Tile::segment_row(segment) * Tile::kRow + octet * W::kStrideAcross + lane / 16);
    own.out_rows = plane + 16 * ((segment * Tile::kDown + lane / 16) * Tile::kOutRow + octet);
#pragma unroll
    for (int i = 0; i < Tile::kOwn; ++i) own.of[i] = p.after.channel(min(own.channel + i, p.shape.channels - 1));
    return own;
  }

  __device__ static void convolve(const Params& p, const Own& own, const Place& place) {
#pragma unroll
    for (int c = 0; c < Tile::kOwn; ++c) {
      uint32_t b[kBand];
#pragma unroll
      for (int k = 0; k < kBand; ++k) {
        b[k] = own.tap[k % Tile::kDepth][(c * W::kHeight + k / Tile::kDepth) * Tile::kTableWords];
      }
      float sum[Tile::kDown][4];
      multiply(own.in_rows + 16 * c * Tile::kOwnPlane, b, After::start(own.of[c]), sum);
#pragma unroll
      for (int i = 0; i < Tile::kDown; ++i) {
#pragma unroll
        for (int k = 0; k < 4; ++k) sum[i][k] = After::finish(sum[i][k], own.of[c]);
      }
      __syncwarp();
      leave(own.out_rows + 16 * c * Tile::kOwnPlane, sum);
      if constexpr (kSums) write_sums(p, own.channel + c, place, sum);
    }
  }

  __device__ static void write_outputs(const Params& p, const Lane& lane, int first_channel, const Place& at,
                                       uint32_t from) {
    static_assert(Tile::kOutRows % Tile::kTogether == 0, "rows of a warp end together");
    const DepthwiseShape& shape = p.shape;
    const int channel = first_channel + 8 * lane.chunk;
    const unsigned pixel_bytes = shape.channels * sizeof(T);
    const unsigned row_bytes = shape.out_width * pixel_bytes;
    char* image = reinterpret_cast<char*>(p.y) + static_cast<uint64_t>(at.image) * shape.out_height * row_bytes;
    const unsigned corner = (at.left + lane.pixel) * pixel_bytes + channel * sizeof(T);
#pragma unroll
    for (int s = 0; s < kOutSteps; ++s) {
      if (static_cast<int>(threadIdx.x) / 32 * Tile::kTogether + s * kStep >= Tile::kOutRows) break;
      const int row = lane.row + s * kStep;
      const int of_image = image_of<Tile::kTileRows>(row);
      const int h = at.top + row - of_image * Tile::kTileRows;
      const bool row_inside = h < shape.out_height && of_image < at.images && channel < shape.channels;
      const unsigned to = corner + (of_image * shape.out_height + h) * row_bytes;
#pragma unroll
      for (int o = 0; o < Tile::kAcross; ++o) {
        uint32_t words[4];
        load_matrices_transposed(words, from + 16 * (s * kStep * Tile::kOutRow + o));
        Vector<T, 8> y;
#pragma unroll
        for (int j = 0; j < 4; ++j) word(y, j) = words[j];
        if (row_inside && at.left + lane.pixel + o * 8 < shape.out_width) {
          write(reinterpret_cast<T*>(image + (to + o * 8 * pixel_bytes)), y, shape.channels - channel);
        }
      }
    }
  }

  struct Block {
    uint32_t* table;
    uint32_t planes;
    uint32_t in;   // where a lane's row of inputs goes
    uint32_t out;  // where its row of outputs comes from
    int first_channel;
    Lane lane;

    __device__ explicit Block(unsigned char* shared) {
      planes = shared_address(shared);
      table = reinterpret_cast<uint32_t*>(shared + Tile::kPlanesBytes);
      in = planes + 16 * (lane.given_plane + lane.given_row * Tile::kRow);
      out = planes + 16 * (lane.given_plane + lane.given_row * Tile::kOutRow);
      first_channel = blockIdx.x * Tile::kChannels;
    }
  };

  // Grid: channel blocks, tiles.
  __device__ static void run_once(const Params& p, const Block& block) {
    const Place at = place(p.shape, blockIdx.y);
    const Weights weights = read_weights(p, block.first_channel);
#pragma unroll
    for (int batch = 0; batch < kBatches; ++batch) {
      store(fetch(p, block.lane, block.first_channel, at, batch), block.in, batch);
    }
    write_table(weights, block.table);
    const Own mine = own(p, block.table, block.first_channel, block.planes);
    __syncthreads();
    convolve(p, mine, at);
    __syncthreads();
    write_outputs(p, block.lane, block.first_channel, at, block.out);
  }

  // Grid: channel blocks, and as many blocks of each as are to share the tiles. While a block works on one tile it
  // waits for the inputs of the next.
  __device__ static void run_many(const Params& p, const Block& block) {
    int tile = blockIdx.y;
    Place at = place(p.shape, tile);
    const Weights weights = read_weights(p, block.first_channel);
    Inputs x = fetch(p, block.lane, block.first_channel, at, 0);
    const Own mine = own(p, block.table, block.first_channel, block.planes);
    write_table(weights, block.table);
#pragma unroll 1
    while (true) {
      store(x, block.in, 0);
#pragma unroll
      for (int batch = 1; batch < kBatches; ++batch) {
        store(fetch(p, block.lane, block.first_channel, at, batch), block.in, batch);
      }
      const Place here = at;
      tile += gridDim.y;
      const bool more = tile < p.shape.tiles;
      if (more) {
        at = place(p.shape, tile);
        if constexpr (kAhead) x = fetch(p, block.lane, block.first_channel, at, 0);
      }
      __syncthreads();
      convolve(p, mine, here);
      __syncthreads();
      write_outputs(p, block.lane, block.first_channel, here, block.out);
      if (!more) break;
      if constexpr (!kAhead) x = fetch(p, block.lane, block.first_channel, at, 0);
      __syncthreads();
    }
  }

  __device__ static void run(const Params& p) {
    extern __shared__ __align__(16) unsigned char shared[];
    const Block block(shared);
    if constexpr (Tile::kOnce) {
      run_once(p, block);
    } else {
      run_many(p, block);
    }
  }
};

}  // namespace onnxopt
