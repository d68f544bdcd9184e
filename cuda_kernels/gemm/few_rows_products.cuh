// A product of few rows of 16-bit or 8-bit floats on the matrix units: as fast as the weights come from memory.
//
// A matrix product has 8 rows of a. Where fewer are there, the others are their next parts, of 16 elements: in the
// product of a part, all rows but that part's are zero, and the sums of several parts lie beside each other. So a lane
// loads only its own part of a. What is times zero adds nothing, unless it is an infinity: where a sum is not a number,
// it is computed once more, by itself. Codes of 8 bits become float16 on the way, which holds them. Sums are float32.
#pragma once

#include "device/early_launch.cuh"
#include "gemm/few_rows.cuh"
#include "gemm/few_rows_operands.cuh"
#include "gemm/weight_chunks.cuh"

namespace onnxopt {

// T: of the result. Operands: FloatOperands, or CodeOperands.
template <typename T, typename Operands, Activation kActivation, int kRows, typename Tile>
struct FewRowsProduct : WeightChunks<Tile, 1> {
  using Base = WeightChunks<Tile, 1>;
  using Base::first;
  using Base::lane;
  using Base::warp;
  using typename Base::Sums;
  using typename Base::Words;
  using Stored = typename Operands::Stored;
  static constexpr int kOfChunk = Tile::kBytes / sizeof(Stored);
  static constexpr int kParts = kOfChunk / 16;
  static constexpr int kSlots = 8 / kRows;  // parts side by side
  static constexpr int kPasses = kParts / kSlots;
  static_assert(kSlots <= kParts, "as many parts as rows are free");

  const FewRowsParams& p;
  const Stored* a;  // what the lane reads of the first chunk

  __device__ explicit FewRowsProduct(const FewRowsParams& params)
      : Base(params.b, blockIdx.x, params.columns, params.depth * sizeof(Stored)), p(params) {
    const unsigned row = min(static_cast<unsigned>(lane / 4 / kSlots), p.rows - 1);
    a = static_cast<const Stored*>(p.a) + uint64_t{row} * p.depth + lane / 4 % kSlots * 16 +
        lane % 4 * (4 / sizeof(Stored));
  }

  // Of the lane's parts; zeros behind the end.
  __device__ void load(unsigned chunk, uint32_t (&x)[kPasses][2]) const {
    const Stored* const from = a + chunk * kOfChunk;
    const unsigned begin = chunk * kOfChunk + lane / 4 % kSlots * 16;
#pragma unroll
    for (int q = 0; q < kPasses; ++q) {
      const unsigned element = begin + q * kSlots * 16;
      const unsigned left = element < p.depth ? p.depth - element : 0;
      Operands::load(from + q * kSlots * 16, left, x[q]);
    }
  }

  __device__ void add_chunk(int stage, const uint32_t (&x)[kPasses][2], Sums& sums) const {
    Words words;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int step = part * Operands::kSteps;
      if (step % 2 == 0) Base::take(stage, step, words);
      const bool is_mine = kSlots == 1 || lane / 4 % kSlots == part % kSlots;
      const uint32_t low = is_mine ? x[part / kSlots][0] : 0;
      const uint32_t high = is_mine ? x[part / kSlots][1] : 0;
#pragma unroll
      for (int t = 0; t < Tile::kTiles; ++t) {
        uint32_t weight[4];
        Operands::widen(words.at[t], step % 2, weight);
        Product<typename Operands::Multiplied>::add(sums.at[t], weight, low, high, sums.at[t]);
      }
    }
  }

  __device__ float plain_sum(unsigned column, unsigned row) const {
    const Stored* const x = static_cast<const Stored*>(p.a) + uint64_t{row} * p.depth;
    const Stored* const w = static_cast<const Stored*>(p.b) + uint64_t{column} * p.depth;
    float sum = 0.0f;
#pragma unroll 1
    for (unsigned k = 0; k < p.depth; ++k) sum += onnxopt::widen(x[k]) * onnxopt::widen(w[k]);
    return sum;
  }

  __device__ void store(const Sums& sums) const {
    Base::template share<kSlots>(sums);
    for (unsigned k = threadIdx.x; k < Tile::kColumns * p.rows; k += Tile::kThreads) {
      const unsigned column = first + k % Tile::kColumns;
      const unsigned row = k / Tile::kColumns;
      if (column >= p.columns) continue;
      float sum = Base::sum_of_warps(k % Tile::kColumns, row);
      if (sum != sum) sum = plain_sum(column, row);
      const uint64_t at = uint64_t{row} * p.columns + column;
      float y = p.alpha * sum;
      if (p.bias != nullptr) y += widen(static_cast<const T*>(p.bias)[column]);
      if (p.residual != nullptr) y += p.beta * widen(static_cast<const T*>(p.residual)[at]);
      static_cast<T*>(p.output)[at] = Narrow<T>::from(activate<kActivation>(y));
    }
  }

  __device__ void run() const {
    const Sums sums = Base::template stream<uint32_t[kPasses][2]>(
        p.b_is_constant, [](unsigned, int) {}, [&](unsigned chunk, auto& x) { load(chunk, x); },
        [&](int s, const auto& x, Sums& sums) { add_chunk(s, x, sums); });
    store(sums);
  }
};

// Up to kRows rows.
template <typename T, typename Operands, Activation kActivation, int kRows, int kTiles, int kThreads>
__device__ inline void few_rows_products(const FewRowsParams& params) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  FewRowsProduct<T, Operands, kActivation, kRows, ChunkTile<kThreads / 32, kTiles, 2>>(params).run();
#else
  __trap();  // the host launches it on no such GPU
#endif
}

}  // namespace onnxopt
