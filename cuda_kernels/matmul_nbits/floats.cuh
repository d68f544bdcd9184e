// A product of few rows with weights of 16-bit floats or 8-bit ones, in the form of spread.cuh.
#pragma once

#include "device/reduce.cuh"
#include "matmul_nbits/few_rows.cuh"

namespace onnxopt {

// Words of a weight as left operands of a product of depth 16: of kSteps steps, two matrices of 8 rows each.
template <typename T, typename W>
struct WeightWords;

template <typename T>
struct WeightWords<T, T> {
  static constexpr int kSteps = 2;
  __device__ static void pairs(const uint32_t (&words)[4], int, uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = words[i];
  }
};

template <>
struct WeightWords<float16, float8e4m3fn> {
  static constexpr int kSteps = 1;
  __device__ static void pairs(const uint32_t (&words)[4], int of, uint32_t (&a)[4]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t word = words[2 * of + h];
#if __CUDA_ARCH__ >= 890
      asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.rn.f16x2.e4m3x2 %0, low; cvt.rn.f16x2.e4m3x2 %1, high;}"
          : "=r"(a[h]), "=r"(a[2 + h])
          : "r"(word));
#endif
    }
  }
};

template <typename T, typename W, typename Tile, int kRows, Activation kActivation>
struct FloatsProduct : NBitsProduct<T, Tile, Zeros::kMiddle, kActivation, false> {
  using Base = NBitsProduct<T, Tile, Zeros::kMiddle, kActivation, false>;
  using typename Base::Sums;
  using typename Base::Words;
  using Base::lane;
  using Base::p;
  using Base::warp;
  using Weight = WeightWords<T, W>;
  static constexpr int kUnits = Tile::kSteps / Weight::kSteps;
  static constexpr int kSlots = 8 / kRows < kUnits ? 8 / kRows : kUnits;
  static constexpr int kTaken = 8 / kSlots;  // rows of a
  static constexpr int kPasses = kUnits / kSlots;
  static constexpr int kOfChunk = Tile::kBytes / sizeof(W);
  const T* mine;

  __device__ FloatsProduct(const MatMulNBitsParams& params, unsigned tile) : Base(params, tile, 0) {
    const unsigned row = min(static_cast<unsigned>(lane / 4 / kSlots), p.rows - 1);
    mine = static_cast<const T*>(p.a) + uint64_t{row} * p.depth + lane / 4 % kSlots * 16 +
           lane % 4 * (sizeof(W) == 1 ? 4 : 2);
  }

  __device__ void load_rows(unsigned chunk, uint32_t (&x)[kPasses][2]) const {
    const T* const from = mine + chunk * kOfChunk;
    const unsigned begin = chunk * kOfChunk + lane / 4 % kSlots * 16;
#pragma unroll
    for (int q = 0; q < kPasses; ++q) {
      const T* const at = from + q * kSlots * 16;
      const unsigned element = begin + q * kSlots * 16;
      if constexpr (sizeof(W) == 1) {
        Vector<uint32_t, 2> words{};
        if (element < p.depth) words = load_vector<uint32_t, 2>(reinterpret_cast<const uint32_t*>(at));
        x[q][0] = words.at[0];
        x[q][1] = words.at[1];
      } else {
        x[q][0] = element < p.depth ? *reinterpret_cast<const uint32_t*>(at) : 0;
        x[q][1] = element + 8 < p.depth ? *reinterpret_cast<const uint32_t*>(at + 8) : 0;
      }
    }
  }

  __device__ void add_chunk(int stage, const uint32_t (&x)[kPasses][2], Sums& sums) const {
    Words words;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int s = u * Weight::kSteps;
      if (s % 2 == 0) Base::take(stage, s, words);
      const bool mine_now = kSlots == 1 || lane / 4 % kSlots == u % kSlots;
      const uint32_t low = mine_now ? x[u / kSlots][0] : 0;
      const uint32_t high = mine_now ? x[u / kSlots][1] : 0;
#pragma unroll
      for (int t = 0; t < Tile::kTiles; ++t) {
        uint32_t a[4];
        Weight::pairs(words.at[t], s % 2, a);
        Product<T>::add(sums.at[t], a, low, high, sums.at[t]);
      }
    }
  }

  __device__ void store(const Sums& sums) const {
    if constexpr (kSlots == 1) {
      Base::store(sums);
    } else {
      float* const all = reinterpret_cast<float*>(dynamic_shared() + Tile::kWarps * Tile::kStages * Tile::kChunkBytes);
      const int row = lane % 4 * 2 / kSlots;
#pragma unroll
      for (int t = 0; t < Tile::kTiles; ++t) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float sum = sums.at[t][2 * h] + sums.at[t][2 * h + 1];
#pragma unroll
          for (int mask = 1; mask < kSlots / 2; mask *= 2) sum += shuffle_xor(sum, mask);
          const int at = ((warp * Tile::kTiles + t) * 8 + row) * Tile::kSumsPitch + lane / 4 + h * 8;
          if (lane % 4 * 2 % kSlots == 0) all[at] = sum;
        }
      }
      __syncthreads();
      Base::store_sums(min(p.rows, static_cast<unsigned>(kTaken)), all);
    }
  }

  __device__ void run() const {
    const unsigned chunks = (this->row_bytes + Tile::kBytes - 1) / Tile::kBytes;
    let_next_begin();
    if (!p.b_is_constant) wait_for_previous();
#pragma unroll
    for (int s = 0; s < Tile::kStages; ++s) {
      const unsigned chunk = warp + s * Tile::kWarps;
      if (chunk < chunks) {
        Base::fetch(chunk, s);
      } else {
        end_group();
      }
    }
    wait_for_previous();
    Sums sums;
    Base::clear(sums);
    for (unsigned begin = warp; begin < chunks; begin += Tile::kStages * Tile::kWarps) {
#pragma unroll
      for (int s = 0; s < Tile::kStages; ++s) {
        const unsigned chunk = begin + s * Tile::kWarps;
        if (chunk >= chunks) break;
        uint32_t x[kPasses][2];
        load_rows(chunk, x);
        wait_for_groups<Tile::kStages - 1>();
        __syncwarp();
        add_chunk(s, x, sums);
        const unsigned next = chunk + Tile::kStages * Tile::kWarps;
        if (next < chunks) {
          __syncwarp();
          Base::fetch(next, s);
        } else {
          end_group();
        }
      }
    }
    store(sums);
  }
};

template <typename T, typename W, typename Tile, int kRows, Activation kActivation>
__device__ inline void few_rows_of_floats(const MatMulNBitsParams& p) {
  FloatsProduct<T, W, Tile, kRows, kActivation>(p, blockIdx.x).run();
}

}  // namespace onnxopt
