// Scales and zero points of neighbouring groups of one column of the weight, in registers as they lie in memory.
#pragma once

#include "device/dtypes.cuh"
#include "device/vector.cuh"

namespace onnxopt {

// Where zero points come from: the middle of the codes, codes, or floats.
enum class Zeros { kMiddle, kCodes, kFloats };

// Floats of kCount groups, a power of two. Those of groups that there are not are 0.
template <typename T, int kCount>
struct GroupFloats {
  uint32_t words[(kCount + 1) / 2];

  // of: [columns, groups]. begin: a multiple of kCount.
  __device__ void load(const void* of, unsigned column, unsigned begin, unsigned groups) {
    const T* const from = static_cast<const T*>(of) + uint64_t{column} * groups + begin;
    if (kCount > 1 && groups % kCount == 0 && begin < groups) {
      const auto all = load_vector<uint32_t, (kCount + 1) / 2>(reinterpret_cast<const uint32_t*>(from));
#pragma unroll
      for (int w = 0; w < kCount / 2; ++w) words[w] = all.at[w];
      return;
    }
#pragma unroll
    for (int w = 0; w < (kCount + 1) / 2; ++w) words[w] = 0;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      if (begin + j < groups) words[j / 2] |= uint32_t{from[j].bits} << (16 * (j % 2));
    }
  }

  __device__ float at(int j) const { return widen(T{static_cast<uint16_t>(words[j / 2] >> (16 * (j % 2)))}); }
};

// From which on the last bit of a float counts ones: with a code in its last bits, it is that much more.
constexpr float kExact = 8388608.0f;
constexpr uint32_t kExactBits = 0x4b000000u;

template <int kBits>
constexpr float kMiddle = 1 << (kBits - 1);

// Zero points of kCount groups, as far below the middle of the codes as they are.
template <typename T, int kBits, int kCount, Zeros kZeros>
struct GroupZeros {
  __device__ void load(const void*, unsigned, unsigned, unsigned) {}
  __device__ float below_middle(int) const { return 0.0f; }
};

template <typename T, int kBits, int kCount>
struct GroupZeros<T, kBits, kCount, Zeros::kFloats> : GroupFloats<T, kCount> {
  __device__ float below_middle(int j) const { return kMiddle<kBits> - this->at(j); }
};

template <typename T, int kBits, int kCount>
struct GroupZeros<T, kBits, kCount, Zeros::kCodes> {
  static constexpr int kOfByte = 8 / kBits;
  static constexpr int kBytes = (kCount + kOfByte - 1) / kOfByte;
  uint32_t words[(kBytes + 3) / 4];

  // of: [columns, groups], packed; the last byte of a column may be half empty.
  __device__ void load(const void* of, unsigned column, unsigned begin, unsigned groups) {
    const unsigned pitch = (groups + kOfByte - 1) / kOfByte;
    const unsigned first = begin / kOfByte;
    const uint8_t* const from = static_cast<const uint8_t*>(of) + uint64_t{column} * pitch + first;
    if constexpr (kBytes >= 4) {
      if (pitch % kBytes == 0 && first < pitch) {
        const auto all = load_vector<uint32_t, kBytes / 4>(reinterpret_cast<const uint32_t*>(from));
#pragma unroll
        for (int w = 0; w < kBytes / 4; ++w) words[w] = all.at[w];
        return;
      }
    }
#pragma unroll
    for (int w = 0; w < (kBytes + 3) / 4; ++w) words[w] = 0;
#pragma unroll
    for (int i = 0; i < kBytes; ++i) {
      if (first + i < pitch) words[i / 4] |= uint32_t{from[i]} << (8 * (i % 4));
    }
    if (kCount < kOfByte) words[0] >>= begin % kOfByte * kBits;
  }

  __device__ float below_middle(int j) const {
    const uint32_t code = words[j * kBits / 32] >> (j * kBits % 32) & ((1u << kBits) - 1);
    return kMiddle<kBits> + kExact - __uint_as_float(kExactBits | code);
  }
};

}  // namespace onnxopt
