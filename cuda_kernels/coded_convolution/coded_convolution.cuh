// y = Of::code(conv(x, w)): convolutions of 8-bit codes with sums of int32.
//
// y is a matrix of its pixels by filters: a row of it is a sum over the taps of its window and their channels. A block
// takes tiles of y one after the other. Parts of x and w of 64 codes a row come to shared memory some steps ahead,
// those of the next tile while the sums of this one are stored; where a tap is outside of x, its codes are the zero
// point. Eight warps multiply, each 32 rows and half of the columns. Sums go through shared memory, a warp's 16 rows at
// a time, so that a lane has 16 neighbours of a row: the residual is loaded, and codes are stored, 16 bytes at once.
//
// Of, one for all kernels of the same steps, has the types Window, Scale, Bias, Residual and Stored, whether x is uint8
// (kUnsigned) and has a zero point (kZero), whether a row of y is a product of one row of x (kIsProduct), what is read
// (kScales, kBias, kResidual), and which steps there are: v is at least 0 (kActivates) and at most a bound (kBounded),
// before the residual is added or after it (kResidualLast: before), and rounded to codes before the residual
// (kRounded).
#pragma once

#include "coded_convolution/abi.h"
#include "device/copy_async.cuh"
#include "device/dtypes.cuh"
#include "device/dynamic_shared.cuh"
#include "device/early_launch.cuh"
#include "device/index.cuh"
#include "device/matrix_words.cuh"
#include "device/static_window.cuh"
#include "device/vector.cuh"

namespace onnxopt {

template <typename T>
struct IsInteger {
  static constexpr bool value = false;
};
template <>
struct IsInteger<int32_t> {
  static constexpr bool value = true;
};

// kColumns: of a tile. kStages: parts that shared memory holds.
template <typename Of, int kColumns, int kStages>
struct CodedConvolution {
  static constexpr int kRows = 128;  // of a tile
  static constexpr int kDepth = 64;  // of a part
  static constexpr int kThreads = 256;
  static constexpr int kWarpRows = 32;
  static constexpr int kWarpColumns = kColumns / 2;
  static constexpr int kTiles = kWarpColumns / 8;  // of sums
  static constexpr int kChunks = kDepth / 16;      // of 16 bytes, of a row of a part
  static constexpr int kStageBytes = (kRows + kColumns) * kDepth;
  static constexpr int kPitch = kWarpColumns + 4;  // of sums in shared memory: rows begin in different banks
  static constexpr int kWarpSums = 16 * kPitch;
  static constexpr int kSharedBytes = kStages * kStageBytes + kThreads / 32 * kWarpSums * 4;
  static constexpr int kTurns = kWarpColumns / 32;  // vectors of 16 columns that a lane stores of 16 rows
  using Sums = int (&)[2][kTiles][4];
  using Residuals = Vector<typename Of::Residual, 16> (&)[2][kTurns];
  using Stored = typename Of::Stored;
  using Window = typename Of::Window;
  static constexpr bool kOfSums = Of::kBias && IsInteger<typename Of::Bias>::value;  // the bias is added to sums
  static constexpr int kTurnsOfX = kRows * kChunks / kThreads;  // chunks of x that a thread asks for of a part
  // The next part to ask for: where the windows of the thread's rows begin in x.
  struct Coming {
    unsigned tile, step;
    unsigned row[kTurnsOfX];  // of the image's first row, over all images
    int y[kTurnsOfX], x[kTurnsOfX];
  };

  const CodedConvolutionParams& p;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const unsigned first_row = warp / 2 * kWarpRows;  // of the warp, in a tile
  const unsigned first_column = warp % 2 * kWarpColumns;

  __device__ unsigned steps() const { return (p.depth + kDepth - 1) / kDepth; }

  // Where a chunk of a row of a part is: eight rows of the same chunk are in different banks.
  __device__ static int place(int row, int chunk) { return row * kDepth + (chunk ^ row / 2 % kChunks) * 16; }

  __device__ void begin(Coming& coming, unsigned tile) const {
    coming.tile = tile;
    coming.step = 0;
    if constexpr (!Of::kIsProduct) {
      const unsigned first = tile / p.across * kRows + threadIdx.x / kChunks;
#pragma unroll
      for (int t = 0; t < kTurnsOfX; ++t) {
        const unsigned pixel = first + t * (kThreads / kChunks), image = quotient(pixel, p.of_image);
        const unsigned inside = pixel - image * p.of_image.divisor, y = quotient(inside, p.of_row);
        coming.row[t] = image * p.height;
        coming.y[t] = static_cast<int>(y) * Window::kStrideDown - p.pad_top;
        coming.x[t] = static_cast<int>(inside - y * p.of_row.divisor) * Window::kStrideAcross - p.pad_left;
      }
    }
  }

  // Asks for a part of a tile: rows of x, then rows of w, and zeros beyond them.
  __device__ void bring(const Coming& coming, unsigned char* to) const {
    const unsigned row = coming.tile / p.across * kRows, column = coming.tile % p.across * kColumns;
    const int chunk = threadIdx.x % kChunks;
    const unsigned k = coming.step * kDepth + chunk * 16;
    const unsigned tap = Of::kIsProduct ? 0 : quotient(k, p.of_tap), channel = k - tap * p.of_tap.divisor;
    const int down = tap / Window::kWidth * Window::kDilationDown;
    const int across = tap % Window::kWidth * Window::kDilationAcross;
#pragma unroll
    for (int t = 0; t < kTurnsOfX; ++t) {
      const int r = threadIdx.x / kChunks + t * (kThreads / kChunks);
      const auto* from = static_cast<const unsigned char*>(p.x);
      bool exists = row + r < p.rows && k < p.depth;
      if constexpr (Of::kIsProduct) {
        if (exists) from += static_cast<uint64_t>(row + r) * p.depth + k;
      } else {
        const int y = coming.y[t] + down, x = coming.x[t] + across;
        exists = exists && y >= 0 && y < p.height && x >= 0 && x < p.width;
        if (exists) {
          const uint64_t pixel = static_cast<uint64_t>(coming.row[t] + y) * p.width + x;
          from += pixel * p.of_tap.divisor + channel;
        }
      }
      if (Of::kZero && !exists) {
        store_vector(to + place(r, chunk), zeros());
      } else {
        copy_or_zero_async<16>(to + place(r, chunk), from, exists);
      }
    }
#pragma unroll
    for (int t = 0; t < kColumns * kChunks / kThreads; ++t) {
      const int r = threadIdx.x / kChunks + t * (kThreads / kChunks);
      const bool exists = column + r < p.columns && k < p.depth;
      const auto* from = static_cast<const unsigned char*>(p.w);
      if (exists) from += static_cast<uint64_t>(column + r) * p.depth + k;
      copy_or_zero_async<16>(to + place(kRows + r, chunk), from, exists);
    }
  }

  __device__ Vector<unsigned char, 16> zeros() const {
    Vector<unsigned char, 16> codes;
#pragma unroll
    for (int i = 0; i < 16; ++i) codes.at[i] = static_cast<unsigned char>(static_cast<int>(p.numbers.zero));
    return codes;
  }

  // of_filters: sums of codes of the filters 8 j + lane / 4.
  __device__ void add(const unsigned char* stage, Sums sums, int (&of_filters)[kTiles]) const {
    const uint32_t of_x = shared_address(stage), of_w = of_x + kRows * kDepth;
#pragma unroll
    for (int q = 0; q < kDepth / 32; ++q) {
      uint32_t a[2][4];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        load_matrices(a[r], of_x + place(first_row + 16 * r + lane % 16, 2 * q + lane / 16));
      }
#pragma unroll
      for (int j = 0; j < kTiles; j += 2) {
        uint32_t b[4];
        load_matrices(b, of_w + place(first_column + 8 * j + lane / 16 * 8 + lane % 8, 2 * q + lane / 8 % 2));
        if constexpr (Of::kZero) {
          of_filters[j] = add_codes(b[1], add_codes(b[0], of_filters[j]));
          of_filters[j + 1] = add_codes(b[3], add_codes(b[2], of_filters[j + 1]));
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          ProductOfCodes<Of::kUnsigned>::add(sums[r][j], a[r], b[0], b[1]);
          ProductOfCodes<Of::kUnsigned>::add(sums[r][j + 1], a[r], b[2], b[3]);
        }
      }
    }
  }

  // Where the lane's first vector of a tile is.
  __device__ unsigned row_of(unsigned tile) const { return tile / p.across * kRows + first_row + lane % 16; }
  __device__ unsigned column_of(unsigned tile) const {
    return tile % p.across * kColumns + first_column + lane / 16 * 16;
  }

  // Takes away what the zero point adds to the sums.
  __device__ void subtract_zero(Sums sums, int (&of_filters)[kTiles]) const {
    const int zero = static_cast<int>(p.numbers.zero);
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      int all = of_filters[j];  // of a quarter of the codes
      all += __shfl_xor_sync(0xffffffffu, all, 1);
      all += __shfl_xor_sync(0xffffffffu, all, 2);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int added = zero * __shfl_sync(0xffffffffu, all, (lane % 4 * 2 + i) * 4, 32);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          sums[r][j][i] -= added;
          sums[r][j][2 + i] -= added;
        }
      }
    }
  }

  __device__ void load_residual(unsigned tile, Residuals residual) const {
    if constexpr (Of::kResidual) {
      const unsigned row = row_of(tile), column = column_of(tile);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int v = 0; v < kTurns; ++v) {
          if (row + 16 * r >= p.rows || column + 32 * v >= p.columns) continue;
          const uint64_t at = static_cast<uint64_t>(row + 16 * r) * p.columns + column + 32 * v;
          const auto* const from = static_cast<const typename Of::Residual*>(p.residual) + at;
          residual[r][v] = load_vector<typename Of::Residual, 16>(from);
        }
      }
    }
  }

  // Ends a tile: the warp's sums become codes.
  __device__ void end(unsigned tile, unsigned char* memory, Sums sums, Residuals residual) const {
    const unsigned row = row_of(tile), column = column_of(tile);
    int* const own = reinterpret_cast<int*>(memory + kStages * kStageBytes) + warp * kWarpSums;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        int* const at = own + lane / 4 * kPitch + 8 * j + lane % 4 * 2;
        store_vector(at, Vector<int, 2>{sums[r][j][0], sums[r][j][1]});
        store_vector(at + 8 * kPitch, Vector<int, 2>{sums[r][j][2], sums[r][j][3]});
      }
      __syncwarp();
#pragma unroll
      for (int v = 0; v < kTurns; ++v) {
        if (row + 16 * r < p.rows && column + 32 * v < p.columns) {
          store(row + 16 * r, column + 32 * v, own + lane % 16 * kPitch + lane / 16 * 16 + 32 * v, residual[r][v]);
        }
      }
      __syncwarp();
    }
  }

  __device__ void store(unsigned row, unsigned column, const int* sums,
                        const Vector<typename Of::Residual, 16>& residual) const {
    Vector<Stored, 16> y;
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      const auto sum = load_vector<int, 4>(sums + i);
      Vector<typename Of::Scale, 4> scale{};
      Vector<typename Of::Bias, 4> bias{};
      if constexpr (Of::kScales) {
        scale = load_vector<typename Of::Scale, 4>(static_cast<const typename Of::Scale*>(p.scales) + column + i);
      }
      if constexpr (Of::kBias) {
        bias = load_vector<typename Of::Bias, 4>(static_cast<const typename Of::Bias*>(p.bias) + column + i);
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float of_residual = Of::kResidual ? static_cast<float>(residual.at[i + k]) : 0.0f;
        const float code = code_of(sum.at[k], widen(scale.at[k]), static_cast<float>(widen(bias.at[k])), of_residual);
        y.at[i + k] = static_cast<Stored>(static_cast<int>(code));
      }
    }
    store_vector(static_cast<Stored*>(p.y) + static_cast<uint64_t>(row) * p.columns + column, y);
  }

  __device__ float code_of(int sum, float scale, float bias, float residual) const {
    const CodedNumbers& of = p.numbers;
    float v = static_cast<float>(sum);
    if constexpr (kOfSums) v += bias;
    v *= Of::kScales ? scale * of.scale : of.scale;
    if constexpr (Of::kBias && !kOfSums) v += bias;
    if constexpr (Of::kResidualLast) v = activated(v);
    if constexpr (Of::kRounded) v = whole(v * of.per_rounded, of.rounded_low) * of.rounded;
    if constexpr (Of::kResidual) v += (residual - of.residual_zero) * of.residual;
    if constexpr (!Of::kResidualLast) v = activated(v);
    return whole(v * of.per_result, of.result_low) + of.result_zero;
  }

  __device__ float activated(float v) const {
    if constexpr (Of::kActivates) v = fmaxf(v, 0.0f);
    if constexpr (Of::kBounded) v = fminf(v, p.numbers.bound);
    return v;
  }

  // The nearest of 256 integers, half to even.
  __device__ static float whole(float x, float low) { return rintf(fminf(fmaxf(x, low), low + 255.0f)); }

  __device__ void run() const {
    unsigned char* const memory = dynamic_shared();
    Coming coming;
    begin(coming, blockIdx.x);
    const auto ask = [&](int stage) {
      if (coming.tile < p.tiles) {
        bring(coming, memory + stage * kStageBytes);
        if (++coming.step == steps()) begin(coming, coming.tile + gridDim.x);
      }
      end_group();
    };
    for (int stage = 0; stage + 1 < kStages; ++stage) ask(stage);
    int stage = 0;
    for (unsigned tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
      int sums[2][kTiles][4] = {};
      int of_filters[kTiles] = {};
      Vector<typename Of::Residual, 16> residual[2][kTurns];
      load_residual(tile, residual);  // on its way while the products run
      for (unsigned step = 0; step < steps(); ++step) {
        wait_for_groups<kStages - 2>();
        __syncthreads();
        ask((stage + kStages - 1) % kStages);  // in place of what all warps have multiplied
        add(memory + stage * kStageBytes, sums, of_filters);
        stage = (stage + 1) % kStages;
      }
      if constexpr (Of::kZero) subtract_zero(sums, of_filters);
      end(tile, memory, sums, residual);
    }
  }
};

template <typename Of, int kColumns, int kStages>
__device__ inline void coded_convolution(const CodedConvolutionParams& params) {
  begin_early();
  const CodedConvolution<Of, kColumns, kStages> convolution{params};
  convolution.run();
}

}  // namespace onnxopt
