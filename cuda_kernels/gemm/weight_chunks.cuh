// A weight on its way to the matrix units: chunks of its columns in shared memory, for products of few rows.
//
// The weight is the product's left operand: 16 of its columns are 16 rows of memory. A step is 16 bytes of each of
// them: two matrices of 8 rows. A chunk is 8 steps, as far as a warp copies at a time. The warps of a block take chunks
// of the same columns in turn, and copy the first ones before the kernel ahead has ended.
#pragma once

#include "device/copy_async.cuh"
#include "device/dtypes.cuh"
#include "device/dynamic_shared.cuh"
#include "device/early_launch.cuh"
#include "device/matrix_words.cuh"
#include "device/shuffle.cuh"
#include "device/vector.cuh"

namespace onnxopt {

// A block has kWarps warps and 16 * kTiles columns of the weight; a warp has kStages chunks under way.
template <int kWarps_, int kTiles_, int kStages_>
struct ChunkTile {
  static constexpr int kWarps = kWarps_;
  static constexpr int kTiles = kTiles_;
  static constexpr int kStages = kStages_;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kColumns = 16 * kTiles;
  static constexpr int kSteps = 8;
  static constexpr int kBytes = 16 * kSteps;  // of a column in a chunk
  static constexpr int kChunkBytes = kColumns * kBytes;
  static constexpr int kSumsPitch = 20;  // floats behind each other of a row of a: banks of a warp's stores differ
  // A warp's sums take the place of its chunks.
  static constexpr int kSharedBytes = kWarps * kStages * kChunkBytes;
  static_assert(kTiles * 8 * kSumsPitch * 4 <= kStages * kChunkBytes, "sums fit");

  // Where step `step` of a column lies in its chunk: neighbouring columns' steps fall to other banks.
  __device__ static constexpr int place(int column, int step) { return column * kBytes + (step ^ column % 8) * 16; }
  // The places `steps` behind one of the first two, an even number, and `columns` behind one of the first four of
  // eight, a multiple of 4.
  __device__ static constexpr int steps_behind(int place, int steps) { return place ^ (steps * 16); }
  __device__ static constexpr int columns_behind(int place, int columns) {
    return (columns % 8 != 0 ? place ^ 64 : place) + columns * kBytes;
  }
};

// kSides: tensors of columns that lie behind each other, of which a block has the same columns; 2 for a gate.
template <typename Tile, int kSides>
struct WeightChunks {
  static constexpr int kAtOnce = 32 / Tile::kSteps;  // columns, by one copy of each lane
  static constexpr int kCopies = Tile::kColumns / kAtOnce;
  static constexpr int kSide = Tile::kColumns / kSides;  // columns that lie side by side
  static_assert(Tile::kTiles % kSides == 0, "as many matrices of each side");
  static_assert(kAtOnce == 4, "as places behind others are told");

  const int lane;
  const int warp;
  const unsigned first;      // column
  const unsigned columns;    // of a side
  const unsigned row_bytes;  // of b
  const uint8_t* b;          // what the lane copies of the first chunk, for the first time
  unsigned char* const ring;

  __device__ WeightChunks(const void* weight, unsigned tile, unsigned columns, unsigned row_bytes)
      : lane(threadIdx.x % 32),
        warp(threadIdx.x / 32),
        first(tile * kSide),
        columns(columns),
        row_bytes(row_bytes),
        ring(dynamic_shared() + warp * Tile::kStages * Tile::kChunkBytes) {
    b = static_cast<const uint8_t*>(weight) + uint64_t{first + lane / Tile::kSteps} * row_bytes +
        lane % Tile::kSteps * 16;
  }

  __device__ unsigned chunks() const { return (row_bytes + Tile::kBytes - 1) / Tile::kBytes; }

  // Zeros where there is no column and behind the end of columns: what lay there before may be no number.
  __device__ void fetch(unsigned chunk, int stage) const {
    const uint8_t* const from = b + chunk * Tile::kBytes;
    unsigned char* const to = ring + stage * Tile::kChunkBytes;
    const int place = Tile::place(lane / Tile::kSteps, lane % Tile::kSteps);
    if (first + kSide <= columns && (chunk + 1) * Tile::kBytes <= row_bytes) {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) copy(to, place, from, i);
    } else {
      const bool is_inside = chunk * Tile::kBytes + lane % Tile::kSteps * 16 < row_bytes;
#pragma unroll 1
      for (int i = 0; i < kCopies; ++i) {
        const bool exists = is_inside && first + lane / Tile::kSteps + i * kAtOnce % kSide < columns;
        copy_or_zero_async<16>(to + Tile::columns_behind(place, i * kAtOnce),
                               from + static_cast<uint64_t>(behind(i * kAtOnce)) * row_bytes, exists);
      }
    }
    end_group();
  }

  // Which column of the weight, counted from the first one, is column c of the tile.
  __device__ unsigned behind(int c) const { return c < kSide ? c : columns + c - kSide; }

  __device__ void copy(unsigned char* to, int place, const uint8_t* from, int i) const {
    using Word = Vector<uint32_t, 4>;
    copy_async(reinterpret_cast<Word*>(to + Tile::columns_behind(place, i * kAtOnce)),
               reinterpret_cast<const Word*>(from + static_cast<uint64_t>(behind(i * kAtOnce)) * row_bytes));
  }

  // Two steps of every 16 columns.
  struct Words {
    uint32_t at[Tile::kTiles][4];
  };

  __device__ void take(int stage, int step, Words& words) const {
    const int place = Tile::place(lane / 8 % 2 * 8 + lane % 8, lane / 16);
    const uint32_t from = shared_address(ring) + stage * Tile::kChunkBytes;
#pragma unroll
    for (int t = 0; t < Tile::kTiles; ++t) {
      load_matrices(words.at[t], from + Tile::columns_behind(Tile::steps_behind(place, step), 16 * t));
    }
  }

  // Of the columns, for two rows of a product's right operand: (t, i) of column 16 t + lane / 4 + i / 2 * 8.
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

  // The sums over a warp's chunks, which it takes one after the other with kStages under way: copied(chunk, stage)
  // behind a chunk's copy, for what else is loaded ahead; load(chunk, x) when it is the chunk's turn, for what the
  // kernel ahead may have written; add(stage, x, sums) once the chunk is there. is_constant: no kernel writes the
  // weight.
  template <typename X, typename Copied, typename Load, typename Add>
  __device__ Sums stream(bool is_constant, const Copied& copied, const Load& load, const Add& add) const {
    const unsigned count = chunks();
    let_next_begin();
    if (!is_constant) wait_for_previous();
#pragma unroll
    for (int s = 0; s < Tile::kStages; ++s) {
      const unsigned chunk = warp + s * Tile::kWarps;
      if (chunk < count) {
        fetch(chunk, s);
        copied(chunk, s);
      } else {
        end_group();
      }
    }
    wait_for_previous();
    Sums sums;
    clear(sums);
    for (unsigned begin = warp; begin < count; begin += Tile::kStages * Tile::kWarps) {
#pragma unroll
      for (int s = 0; s < Tile::kStages; ++s) {
        const unsigned chunk = begin + s * Tile::kWarps;
        if (chunk >= count) break;
        X x;
        load(chunk, x);
        wait_for_groups<Tile::kStages - 1>();
        __syncwarp();
        add(s, x, sums);
        const unsigned next = chunk + Tile::kStages * Tile::kWarps;
        if (next < count) {
          __syncwarp();
          fetch(next, s);
          copied(next, s);
        } else {
          end_group();
        }
      }
    }
    return sums;
  }

  // Puts a warp's sums where `sum_of_warps` finds them, each the sum of kSlots rows of the right operand. The warp
  // reads its chunks no more.
  template <int kSlots>
  __device__ void share(const Sums& sums) const {
    __syncwarp();
    float* const mine = reinterpret_cast<float*>(ring);
    const int row = lane % 4 * 2 / kSlots;
#pragma unroll
    for (int t = 0; t < Tile::kTiles; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float* const at = mine + (t * 8 + row) * Tile::kSumsPitch + lane / 4 + h * 8;
        if constexpr (kSlots == 1) {
          at[0] = sums.at[t][2 * h];
          at[Tile::kSumsPitch] = sums.at[t][2 * h + 1];
        } else {
          float sum = sums.at[t][2 * h] + sums.at[t][2 * h + 1];
#pragma unroll
          for (int mask = 1; mask < kSlots / 2; mask *= 2) sum += shuffle_xor(sum, mask);
          if (lane % 4 * 2 % kSlots == 0) at[0] = sum;
        }
      }
    }
    __syncthreads();
  }

  // Of column c of the tile, and a row of a.
  __device__ static float sum_of_warps(unsigned c, unsigned row) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < Tile::kWarps; ++w) {
      const unsigned char* const of_warp = dynamic_shared() + w * Tile::kStages * Tile::kChunkBytes;
      sum += reinterpret_cast<const float*>(of_warp)[(c / 16 * 8 + row) * Tile::kSumsPitch + c % 16];
    }
    return sum;
  }
};

}  // namespace onnxopt
