// y = Of::code(x w^T): products of int8 codes with sums of int32, from sm_80 on.
//
// A block takes tiles of the result one after the other. Parts of x and w of 64 codes a row come to shared memory some
// steps ahead, those of the next tile while the sums of this one are stored. Eight warps multiply, each of 32 rows and
// half of the columns. Sums go through shared memory, a warp's 16 rows at a time, so that a lane has 16 neighbours of a
// row: the residual is loaded, and codes are stored, 16 bytes at once.
//
// Of, one for each kernel, has the types Scale, Bias, Residual and Stored, what of these it reads (kScales, kBias,
// kResidual), and code(sum, scale, bias, residual), a code of a sum as a float.
#pragma once

#include "coded_product/abi.h"
#include "device/copy_async.cuh"
#include "device/dtypes.cuh"
#include "device/dynamic_shared.cuh"
#include "device/early_launch.cuh"
#include "device/matrix_words.cuh"
#include "device/vector.cuh"

namespace onnxopt {

// kColumns: of a tile. kStages: parts that shared memory holds.
template <typename Of, int kColumns, int kStages>
struct CodedProduct {
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

  const CodedProductParams& p;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const unsigned first_row = warp / 2 * kWarpRows;  // of the warp, in a tile
  const unsigned first_column = warp % 2 * kWarpColumns;

  __device__ unsigned steps() const { return (p.depth + kDepth - 1) / kDepth; }

  // Where a chunk of a row of a part is: eight rows of the same chunk are in different banks.
  __device__ static int place(int row, int chunk) { return row * kDepth + (chunk ^ row / 2 % kChunks) * 16; }

  // Asks for a part of a tile: rows of x, then rows of w, and zeros beyond them.
  __device__ void bring(unsigned tile, unsigned step, unsigned char* to) const {
    const unsigned row = tile / p.across * kRows, column = tile % p.across * kColumns;
#pragma unroll
    for (int i = threadIdx.x; i < (kRows + kColumns) * kChunks; i += kThreads) {
      const int r = i / kChunks, chunk = i % kChunks;
      const bool of_x = r < kRows;
      const unsigned at = of_x ? row + r : column + (r - kRows), k = step * kDepth + chunk * 16;
      const bool exists = at < (of_x ? p.rows : p.columns) && k < p.depth;
      const auto* from = static_cast<const unsigned char*>(of_x ? p.x : p.w);
      if (exists) from += static_cast<uint64_t>(at) * p.depth + k;
      copy_or_zero_async<16>(to + place(r, chunk), from, exists);
    }
  }

  __device__ void add(const unsigned char* stage, Sums sums) const {
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
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          ProductOfCodes::add(sums[r][j], a[r], b[0], b[1]);
          ProductOfCodes::add(sums[r][j + 1], a[r], b[2], b[3]);
        }
      }
    }
  }

  // Where the lane's first vector of a tile is.
  __device__ unsigned row_of(unsigned tile) const { return tile / p.across * kRows + first_row + lane % 16; }
  __device__ unsigned column_of(unsigned tile) const {
    return tile % p.across * kColumns + first_column + lane / 16 * 16;
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
        const float code = Of::code(static_cast<float>(sum.at[k]), widen(scale.at[k]),
                                    static_cast<float>(widen(bias.at[k])), of_residual);
        y.at[i + k] = static_cast<Stored>(static_cast<int>(code));
      }
    }
    store_vector(static_cast<Stored*>(p.y) + static_cast<uint64_t>(row) * p.columns + column, y);
  }

  __device__ void run() const {
    unsigned char* const memory = dynamic_shared();
    unsigned coming = blockIdx.x, coming_step = 0;  // the next part to ask for
    const auto ask = [&](int stage) {
      if (coming < p.tiles) {
        bring(coming, coming_step, memory + stage * kStageBytes);
        if (++coming_step == steps()) {
          coming_step = 0;
          coming += gridDim.x;
        }
      }
      end_group();
    };
    for (int stage = 0; stage + 1 < kStages; ++stage) ask(stage);
    int stage = 0;
    for (unsigned tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
      int sums[2][kTiles][4] = {};
      Vector<typename Of::Residual, 16> residual[2][kTurns];
      load_residual(tile, residual);  // on its way while the products run
      for (unsigned step = 0; step < steps(); ++step) {
        wait_for_groups<kStages - 2>();
        __syncthreads();
        ask((stage + kStages - 1) % kStages);  // in place of what all warps have multiplied
        add(memory + stage * kStageBytes, sums);
        stage = (stage + 1) % kStages;
      }
      end(tile, memory, sums, residual);
    }
  }
};

// The nearest integer from low to high, half to even.
__device__ inline float whole(float x, float low, float high) { return rintf(fminf(fmaxf(x, low), high)); }

template <typename Of, int kColumns, int kStages>
__device__ inline void coded_product(const CodedProductParams& params) {
  if constexpr (kProductsOfCodes) {  // the host launches it nowhere else
    begin_early();
    const CodedProduct<Of, kColumns, kStages> product{params};
    product.run();
  }
}

}  // namespace onnxopt
