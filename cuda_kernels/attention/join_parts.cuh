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
// the splits. All of a lane's loads of kAtOnce splits are asked for before any is used: joining waits for memory alone.
template <int kWidth, int kRows, int kThreads>
struct JoinParts {
  static constexpr float kLog2E = 1.4426950408889634f;
  static constexpr int kFound = kWidth + 2;
  static constexpr int kPieces = (kWidth + 63) / 64;  // of a row
  static constexpr int kUnits = kRows * kPieces;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kGroups = kWarps >= 8 * kUnits ? 8 : kWarps >= 4 * kUnits ? 4 : kWarps >= 2 * kUnits ? 2 : 1;
  static constexpr int kAtOnce = kGroups <= 2 ? 16 : 8;  // splits of a warp
  using Two = Vector<float, 2>;

  struct Joined {
    Two value = {};
    float top = kNoScore;
    float sum = 0.0f;

    // To the larger one of both largest scores.
    __device__ void scale_to(float other_top) {
      const float most = ::fmaxf(top, other_top);
      const float factor = ptx::exp2((top - most) * kLog2E);
      top = most;
      sum *= factor;
      value.at[0] *= factor;
      value.at[1] *= factor;
    }
    __device__ void add(float factor, const Two& x) {
      value.at[0] += factor * x.at[0];
      value.at[1] += factor * x.at[1];
    }
  };

  const float* parts;
  unsigned splits;
  unsigned step;

  // What splits first, first + kGroups and so on have for two elements, and for their largest scores and sums, a lane
  // each.
  __device__ Joined of_splits(unsigned unit, unsigned first) const {
    const unsigned lane = threadIdx.x % 32;
    const unsigned column = min(unit % kPieces * 64 + lane * 2, kWidth - 2u);
    const float* const row = parts + unit / kPieces * kFound;
    Joined joined;
#pragma unroll 1
    for (; first < splits; first += kAtOnce * kGroups) {
      const auto of_split = [&](unsigned u, unsigned at) {  // the last split in place of those behind it
        return load_written<float, 2>(row + static_cast<uint64_t>(min(first + u * kGroups, splits - 1)) * step + at);
      };
      Two loaded[kAtOnce];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) loaded[u] = of_split(u, column);
      const bool has = lane < kAtOnce && first + lane * kGroups < splits;
      const Two found = of_split(lane, kWidth);
      float top = has ? found.at[0] : kNoScore;
#pragma unroll
      for (int lanes = 16; lanes > 0; lanes /= 2) top = ::fmaxf(top, shuffle_xor(top, lanes));
      joined.scale_to(top);
      const float factor = has ? ptx::exp2((found.at[0] - joined.top) * kLog2E) : 0.0f;
      float sum = factor * found.at[1];
#pragma unroll
      for (int lanes = 16; lanes > 0; lanes /= 2) sum += shuffle_xor(sum, lanes);
      joined.sum += sum;
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) joined.add(shuffle_from(factor, u), loaded[u]);
    }
    return joined;
  }

  // store(row, column, x): two elements of a row.
  template <typename Store>
  __device__ void join(Store store) const {
    const unsigned warp = threadIdx.x / 32;
    if constexpr (kGroups == 1) {
#pragma unroll 1
      for (unsigned unit = warp; unit < kUnits; unit += kWarps) put(unit, of_splits(unit, 0), store);
    } else {
      __shared__ Joined shared[kGroups * kUnits * 32];
      const bool takes = warp < kGroups * kUnits;
      Joined joined;
      if (takes) shared[threadIdx.x] = joined = of_splits(warp % kUnits, warp / kUnits);
      __syncthreads();
      if (warp >= kUnits) return;
#pragma unroll
      for (int g = 1; g < kGroups; ++g) {
        const Joined other = shared[threadIdx.x + g * kUnits * 32];
        joined.scale_to(other.top);
        const float factor = ptx::exp2((other.top - joined.top) * kLog2E);
        joined.sum += factor * other.sum;
        joined.add(factor, other.value);
      }
      put(warp, joined, store);
    }
  }

  template <typename Store>
  __device__ static void put(unsigned unit, const Joined& joined, Store& store) {
    const unsigned column = unit % kPieces * 64 + threadIdx.x % 32 * 2;
    if (column >= kWidth) return;
    store(unit / kPieces, column,
          Two{ptx::div(joined.value.at[0], joined.sum), ptx::div(joined.value.at[1], joined.sum)});
  }
};

}  // namespace onnxopt
