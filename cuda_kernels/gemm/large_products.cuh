// A product of many rows of 16-bit floats, or of float32 as TF32, on Hopper, and the activation behind it: the result
// is stored once.
//
// A block takes tiles of the result one after the other. One thread brings tiles of a and b to shared memory, as far
// ahead as there are places (kStages); two warpgroups multiply them, 64 rows each, and end each tile of the result:
// while they do, the next tiles of a and b come. Sums are float32.
//
// What is read of shared memory by products is free again as soon as these have ended, which needs no fence: one of the
// cluster's scope would wait for the products that run as well, and cost a third of the time.
#pragma once

#include "device/dtypes.cuh"
#include "device/dynamic_shared.cuh"
#include "device/early_launch.cuh"
#include "device/products/tile_copies.cuh"
#include "device/products/warpgroup_products.cuh"
#include "device/vector.cuh"
#include "gemm/activation.cuh"
#include "gemm/large_products_abi.h"

namespace onnxopt {

// kColumns: of a tile of the result. kTransposed: b is stored transposed, as float32 always is.
template <typename T, Activation kActivation, int kColumns, int kStages, bool kTransposed>
struct LargeProduct {
  static constexpr int kGroups = 2;  // warpgroups that multiply
  static constexpr int kWarps = 4 * kGroups;
  static constexpr int kOfMultiplying = 232;  // registers of a thread
  static constexpr int kOfBringing = 40;
  static constexpr unsigned kBefore = 8;  // tiles below each other that blocks take before the next columns
  static constexpr int kRow = kTileRowBytes;
  static constexpr int kDepth = kRow / sizeof(T);  // that products read at once
  static constexpr int kBytesOfA = kTileRows * kRow;
  static constexpr int kBytesOfB = kColumns * kRow;
  static constexpr int kStageBytes = kBytesOfA + kBytesOfB;
  static constexpr int kPanel = 64 * kRow;        // 64 columns of b, or a warpgroup's rows of a
  static constexpr int kEnded = 128 / sizeof(T);  // columns of the result that a warp stores at once
  static constexpr int kPitch = 128 + 16;
  static constexpr int kWarpBytes = 16 * kPitch;
  static constexpr int kTiles = kColumns / 8;  // of registers
  static constexpr unsigned kAligned = 1024;   // of what products read
  static constexpr int kSharedBytes = kAligned - 16 + kStages * kStageBytes + kWarps * kWarpBytes + 16 * kStages;
  using Sums = float (&)[kTiles][4];
  using Pair = Vector<T, 2>;

  const LargeProductParams& p;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  unsigned char* ended;  // what the warp stores next
  uint32_t stages;       // an address, as the next one
  uint32_t barriers;

  __device__ explicit LargeProduct(const LargeProductParams& params) : p(params) {
    const uint32_t memory = shared_address(dynamic_shared());
    stages = (memory + kAligned - 1) / kAligned * kAligned;
    ended = dynamic_shared() + (stages - memory) + kStages * kStageBytes + warp * kWarpBytes;
    barriers = stages + kStages * kStageBytes + kWarps * kWarpBytes;
  }

  __device__ uint32_t arrived(int stage) const { return barriers + 8 * stage; }
  __device__ uint32_t free(int stage) const { return barriers + 8 * (kStages + stage); }
  __device__ unsigned tiles_of_rows() const { return (p.rows + kTileRows - 1) / kTileRows; }
  __device__ unsigned steps() const { return (p.depth + kDepth - 1) / kDepth; }
  __device__ unsigned tiles() const { return tiles_of_rows() * ((p.columns + kColumns - 1) / kColumns); }

  // Where a tile of the result begins.
  __device__ void place(unsigned tile, unsigned& row, unsigned& column) const {
    const unsigned together = kBefore * ((p.columns + kColumns - 1) / kColumns);
    const unsigned first = tile / together * kBefore;
    const unsigned below = min(kBefore, tiles_of_rows() - first);
    const unsigned in_group = tile % together;
    row = (first + in_group % below) * kTileRows;
    column = in_group / below * kColumns;
  }

  __device__ void make_barriers() const {
    if (threadIdx.x == 0) {
      for (int s = 0; s < kStages; ++s) {
        make_barrier(arrived(s), 1);
        make_barrier(free(s), kWarps);
      }
      show_barriers();
    }
    __syncthreads();
  }

  // By one thread.
  __device__ void bring() const {
    int stage = 0;
    unsigned phase = 1;
    for (unsigned tile = blockIdx.x; tile < tiles(); tile += gridDim.x) {
      unsigned row, column;
      place(tile, row, column);
      for (unsigned k = 0; k < steps(); ++k) {
        const uint32_t a = stages + stage * kStageBytes, b = a + kBytesOfA;
        wait_for_phase(free(stage), phase);
        expect_bytes(arrived(stage), kStageBytes);
        copy_tile(a, p.a, arrived(stage), k * kDepth, row);
        if constexpr (kTransposed) {
          copy_tile(b, p.b, arrived(stage), k * kDepth, column);
        } else {
#pragma unroll
          for (int q = 0; q < kColumns / 64; ++q) {
            copy_tile(b + q * kPanel, p.b, arrived(stage), column + 64 * q, k * kDepth);
          }
        }
        next(stage, phase);
      }
    }
  }

  __device__ void multiply() const {
    float sums[kTiles][4];
    int stage = 0;
    unsigned phase = 0;
    for (unsigned tile = blockIdx.x; tile < tiles(); tile += gridDim.x) {
      unsigned row, column;
      place(tile, row, column);
      int last = 0;
      for (unsigned k = 0; k < steps(); ++k) {
        wait_for_phase(arrived(stage), phase);
        add(stage, k > 0, sums);
        wait_for_products<1>();
        if (k > 0 && lane == 0) arrive(free(last));
        last = stage;
        next(stage, phase);
      }
      Pair bias[kTiles];
#pragma unroll
      for (int j = 0; j < kTiles; ++j) bias[j] = bias_of(column + 8 * j);
      wait_for_products<0>();
      if (lane == 0) arrive(free(last));
      pin(sums);
      end(row, column, bias, sums);
    }
  }

  __device__ static void next(int& stage, unsigned& phase) {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }

  __device__ void add(int stage, bool more, Sums sums) const {
    const uint32_t a = stages + stage * kStageBytes + warp / 4 * kPanel;
    const uint32_t b = stages + stage * kStageBytes + kBytesOfA;
    begin_products();
#pragma unroll
    for (int q = 0; q < kRow / 32; ++q) {
      const uint64_t of_a = matrix_in_rows(a + 32 * q);
      if constexpr (kTransposed) {
        WarpgroupProduct<T, kColumns>::add_shared(sums, of_a, matrix_in_rows(b + 32 * q), more || q > 0);
      } else {
        const uint64_t of_b = matrix_in_rows(b + 16 * kRow * q, kPanel);
        WarpgroupProduct<T, kColumns>::template add_shared<true>(sums, of_a, of_b, more || q > 0);
      }
    }
    end_products();
  }

  // Of the lane's two columns of eight.
  __device__ Pair bias_of(unsigned column) const {
    column += lane % 4 * 2;
    if (p.bias == nullptr || column >= p.columns) return {};
    return load_vector<T, 2>(static_cast<const T*>(p.bias) + column);
  }

  // Of kEnded columns, from tile `begin` of registers on, to the warp's part of shared memory.
  __device__ void put_narrow(int begin, const Pair (&bias)[kTiles], Sums sums) const {
    const uint32_t at = shared_address(ended) + lane % 16 * kPitch + lane / 16 * 16;
#pragma unroll
    for (int j = begin; j < begin + kEnded / 8; j += 2) {
      uint32_t x[2][2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float low = widen(bias[j + i].at[0]), high = widen(bias[j + i].at[1]);
        const float (&y)[4] = sums[j + i];
        x[i][0] = narrow_pair<T>(of_sum(y[0], low), of_sum(y[1], high));
        x[i][1] = narrow_pair<T>(of_sum(y[2], low), of_sum(y[3], high));
      }
      store_matrices(at + (j - begin) * 16, x[0][0], x[0][1], x[1][0], x[1][1]);
    }
  }

  __device__ void put_float32(int begin, const Pair (&bias)[kTiles], Sums sums) const {
    unsigned char* const at = ended + lane / 4 * kPitch + lane % 4 * 8;
#pragma unroll
    for (int j = begin; j < begin + kEnded / 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float low = of_sum(sums[j][2 * half], bias[j].at[0]);
        const float high = of_sum(sums[j][2 * half + 1], bias[j].at[1]);
        store_vector(reinterpret_cast<float*>(at + half * 8 * kPitch + (j - begin) * 32), Vector<float, 2>{low, high});
      }
    }
  }

  // A warp's 16 rows, through its own part of shared memory.
  __device__ void end(unsigned row, unsigned column, const Pair (&bias)[kTiles], Sums sums) const {
    constexpr int kOfRow = kEnded / 8;  // tiles of registers
    constexpr int kVector = 16 / sizeof(T);
    constexpr int kVectors = kEnded / kVector;  // of a row
    const unsigned first = row + warp * 16;
#pragma unroll
    for (int begin = 0; begin < kTiles; begin += kOfRow) {
      if constexpr (sizeof(T) == 4) {
        put_float32(begin, bias, sums);
      } else {
        put_narrow(begin, bias, sums);
      }
      __syncwarp();
#pragma unroll
      for (int v = lane; v < 16 * kVectors; v += 32) {
        const unsigned r = first + v / kVectors, c = column + 8 * begin + v % kVectors * kVector;
        const auto from = reinterpret_cast<const T*>(ended + v / kVectors * kPitch + v % kVectors * 16);
        const auto x = load_vector<T, kVector>(from);
        if (r < p.rows && c < p.columns) store_vector(static_cast<T*>(p.output) + uint64_t{r} * p.columns + c, x);
      }
      __syncwarp();
    }
  }

  __device__ float of_sum(float sum, float bias) const { return activate<kActivation>(fmaf(p.alpha, sum, bias)); }
};

template <typename T, Activation kActivation, int kColumns, int kStages, bool kTransposed>
__device__ inline void large_product(const LargeProductParams& params) {
  if constexpr (kWarpgroupProducts) {  // the host launches it nowhere else
    using Product = LargeProduct<T, kActivation, kColumns, kStages, kTransposed>;
    const Product product(params);
    product.make_barriers();
    begin_early();
    if (product.warp < Product::kWarps) {
      take_registers<Product::kOfMultiplying>();
      product.multiply();
    } else {
      leave_registers<Product::kOfBringing>();
      if (product.warp == Product::kWarps && product.lane == 0) product.bring();
    }
  }
}

}  // namespace onnxopt
