// A product of up to 8 rows with weights of 2, 4 or 8 bits, on the matrix units: as fast as the codes come from memory.
//
// The weight is the product's left operand: 16 of its columns are 16 rows of memory. The codes of a chunk are copied to
// shared memory before the kernel ahead has ended, and taken from there as 8x8 matrices of words, so that the four
// lanes of a row hold codes of one group. They become 16-bit floats by bit operations and one exact addition; rows of a
// are read in the order of their pairs. Sums of a group are float32, then times its scale. What zero points change is a
// multiple of the sum of a over the group, which is one more product, with ones.
#pragma once

#include "device/copy_async.cuh"
#include "device/dynamic_shared.cuh"
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
struct NBitsProduct {
  using Params = MatMulNBitsParams;
  using C = Codes<T, Tile::kBits>;
  using Zero = GroupZeros<T, Tile::kBits, Tile::kParts, kZeros>;
  static constexpr int kPairs = C::kPairs;

  // Of the groups of a chunk, for the two columns of each tile whose sums a lane has.
  struct Factors {
    GroupFloats<T, Tile::kParts> scale[Tile::kTiles][2];
    Zero zero[Tile::kTiles][2];
  };

  static constexpr int kAtOnce = 32 / Tile::kSteps;  // columns, by one copy of each lane
  static constexpr int kCopies = Tile::kColumns / kAtOnce;
  // Of the weight, that lie side by side; the second half of a gated tile is up's.
  static constexpr int kSide = kGated ? Tile::kColumns / 2 : Tile::kColumns;
  static_assert(!kGated || Tile::kTiles % 2 == 0, "as many matrices of up as of the gate");
  static_assert(kAtOnce == 4, "as places behind others are told");

  const Params& p;
  const int lane;
  const int warp;
  const unsigned first;      // column
  const unsigned first_row;  // of a
  const unsigned row_bytes;  // of b
  const uint8_t* b;          // what the lane copies of the first chunk, for the first time
  const T* a;                // what it reads of the first chunk
  unsigned char* const ring;

  __device__ NBitsProduct(const Params& params, unsigned tile, unsigned row_tile)
      : p(params),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32),
        first(tile * kSide),
        first_row(row_tile * 8),
        row_bytes(p.groups * (Tile::kGroup * Tile::kBits / 8)),
        ring(dynamic_shared() + warp * Tile::kStages * Tile::kChunkBytes) {
    const unsigned row = min(first_row + lane / 4, p.rows - 1);
    a = static_cast<const T*>(p.a) + uint64_t{row} * p.depth + lane % 4 * Tile::kOfWord;
    b = static_cast<const uint8_t*>(p.b) + uint64_t{first + lane / Tile::kSteps} * row_bytes + lane % Tile::kSteps * 16;
  }

  // Nothing where there is no column and behind the end of columns: what lies there is never stored, or times zero.
  __device__ void fetch(unsigned chunk, int stage) const {
    const uint8_t* const from = b + chunk * Tile::kBytes;
    unsigned char* const to = ring + stage * Tile::kChunkBytes;
    const int place = Tile::place(lane / Tile::kSteps, lane % Tile::kSteps);
    if (first + kSide <= p.columns && (chunk + 1) * Tile::kBytes <= row_bytes) {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) copy(to, place, from, i);
    } else if (chunk * Tile::kBytes + lane % Tile::kSteps * 16 < row_bytes) {
#pragma unroll 1
      for (int i = 0; i < kCopies; ++i) {
        if (first + lane / Tile::kSteps + i * kAtOnce % kSide < p.columns) copy(to, place, from, i);
      }
    }
    end_group();
  }

  // Which column of the weight, counted from the first one, is column c of the tile.
  __device__ unsigned behind(int c) const { return c < kSide ? c : p.columns + c - kSide; }

  __device__ void copy(unsigned char* to, int place, const uint8_t* from, int i) const {
    using Word = Vector<uint32_t, 4>;
    copy_async(reinterpret_cast<Word*>(to + Tile::columns_behind(place, i * kAtOnce)),
               reinterpret_cast<const Word*>(from + static_cast<uint64_t>(behind(i * kAtOnce)) * row_bytes));
  }

  __device__ void load_factors(unsigned chunk, Factors& factors) const {
    const unsigned begin = chunk * Tile::kOfChunk / Tile::kGroup;
#pragma unroll
    for (int t = 0; t < Tile::kTiles; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int of_side = 16 * t % kSide;
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

  struct Sums {
    float at[Tile::kTiles][4];
  };

  __device__ static void clear(Sums& sums) {
#pragma unroll
    for (int t = 0; t < Tile::kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums.at[t][i] = 0.0f;
    }
  }

  // The codes of two steps.
  struct Words {
    uint32_t at[Tile::kTiles][4];
  };

  __device__ void take(int stage, int step, Words& words) const {
    const int place = Tile::place(lane / 8 % 2 * 8 + lane % 8, lane / 16);
    const uint32_t from = shared_address(static_cast<const void*>(ring)) + stage * Tile::kChunkBytes;
#pragma unroll
    for (int t = 0; t < Tile::kTiles; ++t) {
      load_matrices(words.at[t], from + Tile::columns_behind(Tile::steps_behind(place, step), 16 * t));
    }
  }

  __device__ static void add_step(const Words& words, int of, const uint32_t (&x)[kPairs], Sums& sums,
                                  float (&ones)[4]) {
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
      if (s % 2 == 0) take(stage, s, words);
#pragma unroll
      for (int h = 0; h < Tile::kHalves; ++h) {
        if (s % Tile::kStepsOfPart == 0) {
          clear(part);
#pragma unroll
          for (int i = 0; i < 4; ++i) ones[i] = 0.0f;
        }
        uint32_t mine[kPairs];
#pragma unroll
        for (int i = 0; i < kPairs; ++i) mine[i] = Tile::kHalves == 1 || lane % 4 / 2 == h ? x[s][i] : 0;
        add_step(words, s % 2, mine, part, ones);
        if ((s + 1) % Tile::kStepsOfPart == 0) {
          add_part(part, ones, factors, s / Tile::kStepsOfPart * Tile::kHalves + h, sums);
        }
      }
    }
  }

  // Adds the sums of all warps and stores the results.
  __device__ void store(const Sums& sums) const {
    float* const all = reinterpret_cast<float*>(dynamic_shared() + Tile::kWarps * Tile::kStages * Tile::kChunkBytes);
#pragma unroll
    for (int t = 0; t < Tile::kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = ((warp * Tile::kTiles + t) * 8 + lane % 4 * 2 + i % 2) * Tile::kSumsPitch + lane / 4 + i / 2 * 8;
        all[at] = sums.at[t][i];
      }
    }
    __syncthreads();
    store_sums(min(p.rows - first_row, 8u), all);
  }

  // Of so many rows, from the sums of warps in shared memory.
  __device__ void store_sums(unsigned rows, const float* all) const {
    for (unsigned k = threadIdx.x; k < kSide * rows; k += Tile::kThreads) {
      const unsigned c = k % kSide;
      const unsigned row = k / kSide;
      if (first + c >= p.columns) continue;
      const uint64_t at = uint64_t{first_row + row} * p.columns + first + c;
      float y = result(all, c, row);
      if constexpr (kGated) {
        y = activate<kActivation>(y) * result(all, c + kSide, row);
      } else {
        if (p.residual != nullptr) y += p.beta * widen(static_cast<const T*>(p.residual)[at]);
        y = activate<kActivation>(y);
      }
      static_cast<T*>(p.output)[at] = Narrow<T>::from(y);
    }
  }

  // Of column c of the tile: the sums of all warps, and the bias.
  __device__ float result(const float* all, unsigned c, unsigned row) const {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < Tile::kWarps; ++w) {
      sum += all[((w * Tile::kTiles + c / 16) * 8 + row) * Tile::kSumsPitch + c % 16];
    }
    const float y = p.alpha * sum;
    return p.bias == nullptr ? y : y + widen(static_cast<const T*>(p.bias)[first + behind(c)]);
  }

  __device__ void run() const {
    const unsigned chunks = (row_bytes + Tile::kBytes - 1) / Tile::kBytes;
    Factors factors[Tile::kStages];
    let_next_begin();
    if (!p.b_is_constant) wait_for_previous();
#pragma unroll
    for (int s = 0; s < Tile::kStages; ++s) {
      const unsigned chunk = warp + s * Tile::kWarps;
      if (chunk < chunks) {
        fetch(chunk, s);
        load_factors(chunk, factors[s]);
      } else {
        end_group();
      }
    }
    wait_for_previous();
    Sums sums;
    clear(sums);
    for (unsigned begin = warp; begin < chunks; begin += Tile::kStages * Tile::kWarps) {
#pragma unroll
      for (int s = 0; s < Tile::kStages; ++s) {
        const unsigned chunk = begin + s * Tile::kWarps;
        if (chunk >= chunks) break;
        uint32_t x[Tile::kSteps][kPairs];
        load_row(chunk, x);
        wait_for_groups<Tile::kStages - 1>();
        __syncwarp();
        add_chunk(s, x, factors[s], sums);
        const unsigned next = chunk + Tile::kStages * Tile::kWarps;
        if (next < chunks) {
          __syncwarp();
          fetch(next, s);
          load_factors(next, factors[s]);
        } else {
          end_group();
        }
      }
    }
    store(sums);
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
