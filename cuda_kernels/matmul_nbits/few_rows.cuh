// A product of up to 8 rows with weights of 2, 4 or 8 bits, on the matrix units: as fast as the codes come from memory.
//
// The codes of a chunk are taken as 8x8 matrices of words (gemm/weight_chunks.cuh), so that the four lanes of a row
// hold codes of one group. They become 16-bit floats by bit operations and one exact addition; rows of a are read in
// the order of their pairs. Sums of a group are float32, then times its scale. What zero points change is a multiple of
// the sum of a over the group, which is one more product, with ones.
#pragma once

#include "device/early_launch.cuh"
#include "device/scalar.cuh"
#include "device/vector.cuh"
#include "gemm/activation.cuh"
#include "matmul_nbits/abi.h"
#include "matmul_nbits/codes.cuh"
#include "matmul_nbits/factors.cuh"
#include "matmul_nbits/tile.cuh"

namespace onnxopt {

template <typename T, typename Tile, Zeros kZeros, Activation kActivation, bool kGated>
struct NBitsProduct : WeightChunks<Tile, kGated ? 2 : 1> {
  using Base = WeightChunks<Tile, kGated ? 2 : 1>;
  using Base::first;
  using Base::lane;
  using Base::warp;
  using typename Base::Sums;
  using typename Base::Words;
  using Params = MatMulNBitsParams;
  using C = Codes<T, Tile::kBits>;
  using Zero = GroupZeros<T, Tile::kBits, Tile::kParts, kZeros>;
  static constexpr int kPairs = C::kPairs;

  // Of the groups of a chunk, for the two columns of each tile whose sums a lane has.
  struct Factors {
    GroupFloats<T, Tile::kParts> scale[Tile::kTiles][2];
    Zero zero[Tile::kTiles][2];
  };

  const Params& p;
  const unsigned first_row;  // of a
  const T* a;                // what the lane reads of the first chunk

  __device__ NBitsProduct(const Params& params, unsigned tile, unsigned row_tile)
      : Base(params.b, tile, params.columns, params.groups * (Tile::kGroup * Tile::kBits / 8)),
        p(params),
        first_row(row_tile * 8) {
    const unsigned row = min(first_row + lane / 4, p.rows - 1);
    a = static_cast<const T*>(p.a) + uint64_t{row} * p.depth + lane % 4 * Tile::kOfWord;
  }

  __device__ void load_factors(unsigned chunk, Factors& factors) const {
    const unsigned begin = chunk * Tile::kOfChunk / Tile::kGroup;
#pragma unroll
    for (int t = 0; t < Tile::kTiles; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int of_side = 16 * t % Base::kSide;
        const unsigned c = min(first + of_side + 8 * h + lane / 4, p.columns - 1) + (of_side < 16 * t ? p.columns : 0);
        factors.scale[t][h].load(p.scales, c, begin, p.groups);
        factors.zero[t][h].load(p.zeros, c, begin, p.groups);
      }
    }
  }

  // Of the lane's row of a, in the order of pairs; zeros behind the end.
  __device__ void load_row(unsigned chunk, uint32_t (&x)[Tile::kSteps][kPairs]) const {
    const uint32_t* const from = reinterpret_cast<const uint32_t*>(a + chunk * Tile::kOfChunk);
    constexpr int kStep = Tile::kOfStep / 2;  // words
    Vector<uint32_t, kPairs> words[Tile::kSteps];
    if ((chunk + 1) * Tile::kOfChunk <= p.depth) {
#pragma unroll
      for (int s = 0; s < Tile::kSteps; ++s) words[s] = load_vector<uint32_t, kPairs>(from + s * kStep);
    } else {
      const unsigned begin = chunk * Tile::kOfChunk + lane % 4 * Tile::kOfWord;
#pragma unroll
      for (int s = 0; s < Tile::kSteps; ++s) {
        const bool exists = begin + s * Tile::kOfStep < p.depth;
        words[s] = exists ? load_vector<uint32_t, kPairs>(from + s * kStep) : Vector<uint32_t, kPairs>{};
      }
    }
#pragma unroll
    for (int s = 0; s < Tile::kSteps; ++s) pair_up<T, Tile::kBits>(words[s].at, x[s]);
  }

  // Step `of` of two, times a lane's rows.
  __device__ static void add_step(const Words& words, int of, const uint32_t (&x)[kPairs], Sums& sums) {
#pragma unroll
    for (int t = 0; t < Tile::kTiles; ++t) {
      uint32_t low[kPairs];
      uint32_t high[kPairs];
      C::widen(words.at[t][2 * of], low);
      C::widen(words.at[t][2 * of + 1], high);
#pragma unroll
      for (int i = 0; i < kPairs; i += 2) {
        const uint32_t a[4] = {low[i], high[i], low[i + 1], high[i + 1]};
        Product<T>::add(sums.at[t], a, x[i], x[i + 1], sums.at[t]);
      }
    }
  }

  // The sums of a step's rows, where zero points need them.
  __device__ static void add_ones(const uint32_t (&x)[kPairs], float (&ones)[4]) {
    if constexpr (kZeros != Zeros::kMiddle) {
      const uint32_t a[4] = {C::kOnes, C::kOnes, C::kOnes, C::kOnes};
#pragma unroll
      for (int i = 0; i < kPairs; i += 2) Product<T>::add(ones, a, x[i], x[i + 1], ones);
    }
  }

  __device__ static void add_part(const Sums& part, const float (&ones)[4], const Factors& factors, int j, Sums& sums) {
#pragma unroll
    for (int t = 0; t < Tile::kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float sum = part.at[t][i];
        if constexpr (kZeros != Zeros::kMiddle) sum = ::fmaf(factors.zero[t][i / 2].below_middle(j), ones[i], sum);
        sums.at[t][i] = ::fmaf(factors.scale[t][i / 2].at(j), sum, sums.at[t][i]);
      }
    }
  }

  __device__ void add_chunk(int stage, const uint32_t (&x)[Tile::kSteps][kPairs], const Factors& factors,
                            Sums& sums) const {
    Words words;
    Sums part;
    float ones[4];
#pragma unroll
    for (int s = 0; s < Tile::kSteps; ++s) {
      if (s % 2 == 0) Base::take(stage, s, words);
#pragma unroll
      for (int h = 0; h < Tile::kHalves; ++h) {
        if (s % Tile::kStepsOfPart == 0) {
          Base::clear(part);
#pragma unroll
          for (int i = 0; i < 4; ++i) ones[i] = 0.0f;
        }
        uint32_t mine[kPairs];
#pragma unroll
        for (int i = 0; i < kPairs; ++i) mine[i] = Tile::kHalves == 1 || lane % 4 / 2 == h ? x[s][i] : 0;
        add_step(words, s % 2, mine, part);
        add_ones(mine, ones);
        if ((s + 1) % Tile::kStepsOfPart == 0) {
          add_part(part, ones, factors, s / Tile::kStepsOfPart * Tile::kHalves + h, sums);
        }
      }
    }
  }

  // Of all rows from the first one on, once the warps have shared their sums.
  __device__ void store(unsigned rows) const {
    for (unsigned k = threadIdx.x; k < Base::kSide * rows; k += Tile::kThreads) {
      const unsigned c = k % Base::kSide;
      const unsigned row = k / Base::kSide;
      if (first + c >= p.columns) continue;
      const uint64_t at = uint64_t{first_row + row} * p.columns + first + c;
      float y = result(c, row);
      if constexpr (kGated) {
        y = activate<kActivation>(y) * result(c + Base::kSide, row);
      } else {
        if (p.residual != nullptr) y += p.beta * widen(static_cast<const T*>(p.residual)[at]);
        y = activate<kActivation>(y);
      }
      static_cast<T*>(p.output)[at] = Narrow<T>::from(y);
    }
  }

  // Of column c of the tile: the sums of all warps, and the bias.
  __device__ float result(unsigned c, unsigned row) const {
    const float y = p.alpha * Base::sum_of_warps(c, row);
    return p.bias == nullptr ? y : y + widen(static_cast<const T*>(p.bias)[first + Base::behind(c)]);
  }

  __device__ void run() const {
    Factors factors[Tile::kStages];
    const Sums sums = Base::template stream<uint32_t[Tile::kSteps][kPairs]>(
        p.b_is_constant, [&](unsigned chunk, int s) { load_factors(chunk, factors[s]); },
        [&](unsigned chunk, auto& x) { load_row(chunk, x); },
        [&](int s, const auto& x, Sums& sums) { add_chunk(s, x, factors[s], sums); });
    Base::template share<1>(sums);
    store(min(p.rows - first_row, 8u));
  }
};

// Blocks that take the same columns and other rows are neighbours: they find the codes in the L2 cache.
template <typename T, typename Tile, Zeros kZeros, Activation kActivation, bool kGated>
__device__ inline void matmul_nbits(const MatMulNBitsParams& p) {
  if constexpr (has_products<T>()) {
    const unsigned row_tiles = (p.rows + 7) / 8;
    const unsigned tile = blockIdx.x / row_tiles;
    NBitsProduct<T, Tile, kZeros, kActivation, kGated>(p, tile, blockIdx.x - tile * row_tiles).run();
  } else {
    __trap();  // the host launches it on no such GPU
  }
}

}  // namespace onnxopt
