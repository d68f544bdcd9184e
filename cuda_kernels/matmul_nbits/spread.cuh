// A product of 1, 2 or 4 rows with weights of 4 or 8 bits: the form of few_rows.cuh with fewer instructions a code.
//
// A matrix product has 8 rows of a. Where fewer are there, the others are their next steps: in the product of a step,
// all rows but that step's are zero, and the sums of several steps lie beside each other. So a lane loads only its own
// step's part of a, and multiplies with scales and zero points once for all of these steps.
#pragma once

#include "matmul_nbits/few_rows.cuh"

namespace onnxopt {

template <typename T, typename Tile, int kRows, Zeros kZeros, Activation kActivation, bool kGated>
struct SpreadProduct : NBitsProduct<T, Tile, kZeros, kActivation, kGated> {
  using Base = NBitsProduct<T, Tile, kZeros, kActivation, kGated>;
  using Chunks = WeightChunks<Tile, kGated ? 2 : 1>;
  using Base::first;
  using Base::lane;
  using Base::p;
  using Base::warp;
  using typename Base::C;
  using typename Base::Sums;
  using typename Base::Words;
  static constexpr int kPairs = C::kPairs;
  static constexpr int kSlots = 8 / kRows;               // steps side by side
  static constexpr int kPasses = Tile::kSteps / kSlots;  // of a chunk
  static_assert(Tile::kHalves == 1, "a step has one scale");
  static_assert(kSlots > 1, "else few_rows.cuh");

  // Of the two slots whose sums a lane has, of a column.
  struct Pair {
    float scale[2];
    float below_middle[2];
  };
  struct Raw {
    uint32_t scale;
    uint32_t zero;
  };
  struct Factors {
    Raw at[Tile::kTiles][2][kPasses];
  };

  const T* mine;  // what the lane reads of a in the first chunk

  __device__ SpreadProduct(const MatMulNBitsParams& params, unsigned tile) : Base(params, tile, 0) {
    const unsigned row = min(static_cast<unsigned>(lane / 4 / kSlots), p.rows - 1);
    const unsigned step = lane / 4 % kSlots;
    mine = static_cast<const T*>(p.a) + uint64_t{row} * p.depth + step * Tile::kOfStep + lane % 4 * Tile::kOfWord;
  }

  __device__ void load_factors(unsigned chunk, Factors& factors) const {
    const unsigned begin = chunk * Tile::kOfChunk / Tile::kGroup;
#pragma unroll
    for (int t = 0; t < Tile::kTiles; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int of_side = 16 * t % Chunks::kSide;
        const unsigned c = min(first + of_side + 8 * h + lane / 4, p.columns - 1) + (of_side < 16 * t ? p.columns : 0);
#pragma unroll
        for (int q = 0; q < kPasses; ++q) {
          const unsigned step = q * kSlots + lane % 4 * 2 % kSlots;  // and the next one
          factors.at[t][h][q] = load(c, begin + step / Tile::kStepsOfPart, begin + (step + 1) / Tile::kStepsOfPart);
        }
      }
    }
  }

  // Of groups g and h of a column, neighbours or the same; 0 of those that there are not.
  __device__ Raw load(unsigned c, unsigned g, unsigned h) const {
    Raw raw{0, 0};
    raw.scale = floats(p.scales, c, g, h);
    if constexpr (kZeros == Zeros::kFloats) raw.zero = floats(p.zeros, c, g, h);
    if constexpr (kZeros == Zeros::kCodes) raw.zero = code(c, g) | code(c, h) << 16;
    return raw;
  }

  __device__ uint32_t floats(const void* of, unsigned c, unsigned g, unsigned h) const {
    const T* const from = static_cast<const T*>(of) + uint64_t{c} * p.groups;
    if (Tile::kStepsOfPart == 1 && p.groups % 2 == 0) {
      return g < p.groups ? *reinterpret_cast<const uint32_t*>(from + g) : 0;
    }
    const uint32_t low = g < p.groups ? from[g].bits : 0;
    if constexpr (Tile::kStepsOfPart > 1) return low | low << 16;
    return low | (h < p.groups ? uint32_t{from[h].bits} << 16 : 0);
  }

  __device__ uint32_t code(unsigned c, unsigned g) const {
    constexpr unsigned kOfByte = 8 / Tile::kBits;
    if (g >= p.groups) return 0;
    const unsigned pitch = (p.groups + kOfByte - 1) / kOfByte;
    const uint32_t byte = static_cast<const uint8_t*>(p.zeros)[uint64_t{c} * pitch + g / kOfByte];
    return byte >> (g % kOfByte * Tile::kBits) & ((1u << Tile::kBits) - 1);
  }

  __device__ static Pair widened(const Raw& raw) {
    Pair pair;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      pair.scale[j] = widen(T{static_cast<uint16_t>(raw.scale >> (16 * j))});
      const uint32_t zero = raw.zero >> (16 * j) & 0xffffu;
      if constexpr (kZeros == Zeros::kFloats) {
        pair.below_middle[j] = kMiddle<Tile::kBits> - widen(T{static_cast<uint16_t>(zero)});
      } else if constexpr (kZeros == Zeros::kCodes) {
        pair.below_middle[j] = kMiddle<Tile::kBits> + kExact - __uint_as_float(kExactBits | zero);
      }
    }
    return pair;
  }

  __device__ void load_rows(unsigned chunk, uint32_t (&x)[kPasses][kPairs]) const {
    const uint32_t* const from = reinterpret_cast<const uint32_t*>(mine + chunk * Tile::kOfChunk);
    const unsigned begin = chunk * Tile::kOfChunk + lane / 4 % kSlots * Tile::kOfStep + lane % 4 * Tile::kOfWord;
#pragma unroll
    for (int q = 0; q < kPasses; ++q) {
      Vector<uint32_t, kPairs> words{};
      if (begin + q * kSlots * Tile::kOfStep < p.depth) {
        words = load_vector<uint32_t, kPairs>(from + q * kSlots * Tile::kOfStep / 2);
      }
      pair_up<T, Tile::kBits>(words.at, x[q]);
    }
  }

  __device__ void add_chunk(int stage, const uint32_t (&x)[kPasses][kPairs], const Factors& factors, Sums& sums) const {
    Words words;
#pragma unroll
    for (int q = 0; q < kPasses; ++q) {
      float ones[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      Base::add_ones(x[q], ones);
      Sums part;
      Chunks::clear(part);
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        const int s = q * kSlots + slot;
        if (s % 2 == 0) Chunks::take(stage, s, words);
        uint32_t of_step[kPairs];
#pragma unroll
        for (int i = 0; i < kPairs; ++i) of_step[i] = lane / 4 % kSlots == slot ? x[q][i] : 0;
        Base::add_step(words, s % 2, of_step, part);
      }
      add_part(part, ones, factors, q, sums);
    }
  }

  __device__ static void add_part(const Sums& part, const float (&ones)[4], const Factors& factors, int q, Sums& sums) {
#pragma unroll
    for (int t = 0; t < Tile::kTiles; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const Pair pair = widened(factors.at[t][h][q]);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float sum = part.at[t][2 * h + j];
          if constexpr (kZeros != Zeros::kMiddle) sum = ::fmaf(pair.below_middle[j], ones[2 * h + j], sum);
          sums.at[t][2 * h + j] = ::fmaf(pair.scale[j], sum, sums.at[t][2 * h + j]);
        }
      }
    }
  }

  __device__ void run() const {
    Factors factors[Tile::kStages];
    const Sums sums = Chunks::template stream<uint32_t[kPasses][kPairs]>(
        p.b_is_constant, [&](unsigned chunk, int s) { load_factors(chunk, factors[s]); },
        [&](unsigned chunk, auto& x) { load_rows(chunk, x); },
        [&](int s, const auto& x, Sums& sums) { add_chunk(s, x, factors[s], sums); });
    Chunks::template share<kSlots>(sums);
    Base::store(min(p.rows, static_cast<unsigned>(kRows)));
  }
};

// Of at most kRows rows.
template <typename T, typename Tile, int kRows, Zeros kZeros, Activation kActivation, bool kGated>
__device__ inline void matmul_nbits_spread(const MatMulNBitsParams& p) {
  if constexpr (has_products<T>()) {
    SpreadProduct<T, Tile, kRows, kZeros, kActivation, kGated>(p, blockIdx.x).run();
  } else {
    __trap();  // the host launches it on no such GPU
  }
}

}  // namespace onnxopt
