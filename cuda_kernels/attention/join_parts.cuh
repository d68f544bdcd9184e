// Joins what the blocks that share a row's keys found.
#pragma once

#include "attention/cache.cuh"
#include "device/ptx.cuh"
#include "device/shuffle.cuh"
#include "device/vector.cuh"

namespace onnxopt {

// A block joins the parts of kRows rows: kFound numbers a row from parts[s * step] on of every split s, which are
// kWidth sums of weighted values, then the largest score and the sum of weights.
//
// A warp takes up to 64 elements of a row, two a lane. Where there are more warps, some share these, each with some of
// the splits. Lanes have the largest scores of 32 splits between them. All of a lane's loads are asked for before any
// is used: joining waits for memory alone.
template <int kWidth, int kRows, int kThreads>
struct JoinParts {
  static constexpr float kLog2E = 1.4426950408889634f;
  static constexpr int kFound = kWidth + 2;
  static constexpr int kPieces = (kWidth + 63) / 64;  // of a row
  static constexpr int kUnits = kRows * kPieces;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kGroups = kWarps >= 8 * kUnits ? 8 : kWarps >= 4 * kUnits ? 4 : kWarps >= 2 * kUnits ? 2 : 1;
  static constexpr int kAtOnce = kGroups == 1 ? 16 : kGroups == 8 ? 4 : 8;  // splits of a warp
  using Two = Vector<float, 2>;

  const float* parts;
  unsigned splits;
  unsigned step;

  // What a split has for two elements, or for its largest score and its sum.
  __device__ Two of_split(unsigned split, unsigned at) const {
    return load_written<float, 2>(parts + static_cast<uint64_t>(split) * step + at);
  }

  __device__ void load(unsigned first, unsigned at, bool exists, Two (&loaded)[kAtOnce]) const {
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const unsigned split = first + u * kGroups;
      loaded[u] = exists && split < splits ? of_split(split, at) : Two{};
    }
  }

  // Adds the values of the group's splits to two elements of a row, and all splits' weights to `sum`.
  __device__ void add(unsigned unit, unsigned group, Two& value, float& sum) const {
    const unsigned lane = threadIdx.x % 32;
    const unsigned row = unit / kPieces * kFound;
    const unsigned column = unit % kPieces * 64 + lane * 2;
    Two loaded[kAtOnce];
    load(group, row + column, column < kWidth, loaded);
    Two found = lane < splits ? of_split(lane, row + kWidth) : Two{kNoScore, 0.0f};
    float top = found.at[0];
    for (unsigned s = lane + 32; s < splits; s += 32) top = ::fmaxf(top, of_split(s, row + kWidth).at[0]);
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) top = ::fmaxf(top, shuffle_xor(top, mask));
    float factor = 0.0f;
    float of_lane = 0.0f;
    for (unsigned first = 0; first < splits; first += kAtOnce * kGroups) {
      if (first % 32 == 0) {
        if (first > 0) found = first + lane < splits ? of_split(first + lane, row + kWidth) : Two{kNoScore, 0.0f};
        factor = ptx::exp2((found.at[0] - top) * kLog2E);
        of_lane += factor * found.at[1];
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const float of_split = shuffle_from(factor, first % 32 + group + u * kGroups);
        value.at[0] += of_split * loaded[u].at[0];
        value.at[1] += of_split * loaded[u].at[1];
      }
      if (first + kAtOnce * kGroups < splits)
        load(first + kAtOnce * kGroups + group, row + column, column < kWidth, loaded);
    }
    sum = of_lane;
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
  }

  // store(row, column, x): two elements of a row.
  template <typename Store>
  __device__ void join(Store store) const {
    const unsigned warp = threadIdx.x / 32;
    const unsigned column = threadIdx.x % 32 * 2;
    if constexpr (kGroups == 1) {
      for (unsigned unit = warp; unit < kUnits; unit += kWarps) {
        Two value = {};
        float sum;
        add(unit, 0, value, sum);
        put(unit, column, value, sum, store);
      }
    } else {
      __shared__ Two shared[kGroups * kUnits * 32];
      Two value = {};
      float sum = 0.0f;
      const bool takes = warp < kGroups * kUnits;
      if (takes) {
        add(warp % kUnits, warp / kUnits, value, sum);
        shared[threadIdx.x] = value;
      }
      __syncthreads();
      if (warp >= kUnits) return;
#pragma unroll
      for (int g = 1; g < kGroups; ++g) {
        const Two other = shared[threadIdx.x + g * kUnits * 32];
        value.at[0] += other.at[0];
        value.at[1] += other.at[1];
      }
      put(warp, column, value, sum, store);
    }
  }

  template <typename Store>
  __device__ static void put(unsigned unit, unsigned column, const Two& value, float sum, Store& store) {
    column += unit % kPieces * 64;
    if (column < kWidth) store(unit / kPieces, column, Two{value.at[0] / sum, value.at[1] / sum});
  }
};

}  // namespace onnxopt
