// Group norms of NHWC tensors. A block takes some pixels of a slab: neighbouring channels of one sample, whole groups
// of them, wide enough that loads are coalesced. A thread has one vector of channels and every kRows-th pixel.
//
// Every thread computes the mean and the squared deviations of what it has, which are merged over the block, and over
// the blocks of the slab: through the shared memory of a cluster, or through scratch memory by two launches. Where a
// block's pixels fit into its registers (kHeld > 0), x is read once.
#pragma once

#include "device/approximate.cuh"
#include "device/early_launch.cuh"
#include "device/load.cuh"
#include "device/reduce.cuh"
#include "device/scalar.cuh"
#include "group_norm/abi.h"
#include "group_norm/moments.cuh"

namespace onnxopt {

enum class GroupNormPass { kWhole, kMoments, kApply };

__device__ constexpr int greatest_divisor(int a, int b) { return b == 0 ? a : greatest_divisor(b, a % b); }

// Op is generated: Stored and Result, the storage types of x and y; kX, x's number; kChannels, kGroup (channels of one)
// and kEpsilon; Before and After, programs with the values that they read. kVector: channels of a thread. kColumns:
// vectors of a slab. kHeld: vectors of a thread that stay in registers, 0 where x is read twice. kCluster: blocks that
// share a slab, where kPass is kWhole.
template <typename Op, int kVector, int kColumns, int kThreads, int kHeld, int kCluster, GroupNormPass kPass>
struct GroupNormBlock {
  using T = typename Op::Stored;
  using Channels = Vector<T, kVector>;
  static constexpr int kSlab = kVector * kColumns;
  static constexpr int kGroups = kSlab / Op::kGroup;
  static constexpr int kRows = kThreads / kColumns;
  static constexpr int kRun = greatest_divisor(Op::kGroup, kVector);  // channels of a thread that share a group
  static constexpr int kRuns = kVector / kRun;
  static constexpr int kRunsOfGroup = Op::kGroup / kRun;
  static constexpr int kRunsOfSlab = kSlab / kRun;
  static constexpr int kAtOnce = kHeld > 0 ? kHeld : 4;  // vectors that are loaded before any is used
  static_assert(kSlab % Op::kGroup == 0 && Op::kChannels % kSlab == 0 && kRows > 0, "slabs are whole groups");

  struct Stage {
    struct Partial {
      Moments of[kGroups];
    };
  };

  const GroupNormParams& p;
  const int part;
  const int slab;
  const int64_t sample;
  const int column;
  const int row;
  const int channel;  // the thread's first
  const int begin;    // the block's first pixel
  const int end;
  const int64_t first;  // of the sample's elements, at the thread's first channel

  __device__ explicit GroupNormBlock(const GroupNormParams& params)
      : p(params),
        part(static_cast<int>(blockIdx.x % params.parts)),
        slab(static_cast<int>(blockIdx.x / params.parts % params.slabs)),
        sample(blockIdx.x / params.parts / params.slabs),
        column(static_cast<int>(threadIdx.x % kColumns)),
        row(static_cast<int>(threadIdx.x / kColumns)),
        channel(slab * kSlab + column * kVector),
        begin(part * params.part_pixels),
        end(begin + params.part_pixels < params.pixels ? begin + params.part_pixels : params.pixels),
        first(sample * params.pixels * Op::kChannels + channel) {}

  // Pixels that thread row `r` has.
  __device__ int count_of(int r) const {
    const int left = end - begin - r;
    return r >= kRows || left <= 0 ? 0 : (left - 1) / kRows + 1;
  }

  __device__ int64_t at(int pixel) const { return first + static_cast<int64_t>(pixel) * Op::kChannels; }

  // Loads the next kAtOnce vectors from a pixel on; those behind the end stay as they are.
  __device__ void load(int pixel, Channels (&x)[kAtOnce]) const {
    const T* const data = static_cast<const T*>(p.input[Op::kX]);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (pixel + k * kRows < end) x[k] = load_vector<T, kVector>(data + at(pixel + k * kRows));
    }
  }

  // Keeps the compiler from holding 16-bit elements in float32 until they are read again.
  __device__ static void forget(Channels (&x)[kAtOnce]) {
    if constexpr (sizeof(T) == 2 && sizeof(Channels) % 4 == 0) {
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
#pragma unroll
        for (int w = 0; w < static_cast<int>(sizeof(Channels)) / 4; ++w) asm volatile("" : "+r"(word(x[k], w)));
      }
    }
  }

  // Adds what the vectors from a pixel on hold to the moments of `count` pixels before them. Returns how many there
  // are.
  template <typename Of>
  __device__ int add(int pixel, Channels (&x)[kAtOnce], const Of& of, int count, Moments (&moments)[kRuns]) const {
    const int left = (end - pixel + kRows - 1) / kRows;
    const int here = left < kAtOnce ? (left < 0 ? 0 : left) : kAtOnce;
    if (here == 0) return 0;
    const float share = 1.0f / static_cast<float>(here * kRun);
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      Moments found{0.0f, 0.0f};
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (k >= here) continue;
#pragma unroll
        for (int j = 0; j < kRun; ++j) {
          found.mean += Op::Before::apply(widen(x[k].at[r * kRun + j]), of, r * kRun + j);
        }
      }
      found.mean *= share;
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (k >= here) continue;
#pragma unroll
        for (int j = 0; j < kRun; ++j) {
          const float apart = Op::Before::apply(widen(x[k].at[r * kRun + j]), of, r * kRun + j) - found.mean;
          found.squares += apart * apart;
        }
      }
      moments[r] = count == 0
                       ? found
                       : merged(moments[r], static_cast<float>(count * kRun), found, static_cast<float>(here * kRun));
    }
    return here;
  }

  // The moments of the block's groups from those of its threads, by a warp a group; every warp writes its own groups.
  __device__ void reduce_block(const Moments (&moments)[kRuns], Moments* groups) const {
    __shared__ Moments runs[kRows * kRunsOfSlab];
    if (row < kRows) {
#pragma unroll
      for (int r = 0; r < kRuns; ++r) runs[row * kRunsOfSlab + column * kRuns + r] = moments[r];
    }
    __syncthreads();
    constexpr int kEntries = kRows * kRunsOfGroup;
    const float share = begin < end ? 1.0f / (static_cast<float>(end - begin) * Op::kGroup) : 0.0f;
    for (int g = static_cast<int>(threadIdx.x) / 32; g < kGroups; g += kThreads / 32) {
      float mean = 0.0f;
      for (int k = static_cast<int>(threadIdx.x) % 32; k < kEntries; k += 32) {
        const Moments& of = runs[k / kRunsOfGroup * kRunsOfSlab + g * kRunsOfGroup + k % kRunsOfGroup];
        mean += of.mean * static_cast<float>(count_of(k / kRunsOfGroup) * kRun);
      }
      mean = sum_of_lanes(mean) * share;
      float squares = 0.0f;
      for (int k = static_cast<int>(threadIdx.x) % 32; k < kEntries; k += 32) {
        const Moments& of = runs[k / kRunsOfGroup * kRunsOfSlab + g * kRunsOfGroup + k % kRunsOfGroup];
        const float apart = of.mean - mean;
        squares += of.squares + apart * apart * static_cast<float>(count_of(k / kRunsOfGroup) * kRun);
      }
      squares = sum_of_lanes(squares);
      if (threadIdx.x % 32 == 0) groups[g] = {mean, squares};
    }
  }

  __device__ static float sum_of_lanes(float x) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
    return x;
  }

  // By a warp, from the moments of every part, part k's of a group at parts[k * kGroups]: its mean and 1 / deviation.
  __device__ Moments finished(const Moments* parts) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const float all = static_cast<float>(p.pixels) * Op::kGroup;
    float mean = 0.0f;
    for (int k = lane; k < p.parts; k += 32) mean += parts[k * kGroups].mean * weight(k);
    mean = sum_of_lanes(mean) / all;
    float squares = 0.0f;
    for (int k = lane; k < p.parts; k += 32) {
      const Moments of = parts[k * kGroups];
      const float apart = of.mean - mean;
      squares += of.squares + apart * apart * weight(k);
    }
    return {mean, inverse_sqrt(sum_of_lanes(squares) / all + Op::kEpsilon)};
  }

  // Elements of a group in part k.
  __device__ float weight(int k) const {
    const int64_t left = p.pixels - static_cast<int64_t>(k) * p.part_pixels;
    return left <= 0 ? 0.0f : static_cast<float>(left < p.part_pixels ? left : p.part_pixels) * Op::kGroup;
  }

  // What a thread is to know of its channels' groups, from the block's moments and those of the other blocks.
  __device__ void finish(const Moments* own, Moments (&norms)[kRuns]) const {
    __shared__ Moments done[kGroups];
    const Moments* parts = own;
    const int thread = static_cast<int>(threadIdx.x);
    __syncthreads();
    if constexpr (kPass == GroupNormPass::kApply) {
      parts = reinterpret_cast<const Moments*>(p.scratch) + (blockIdx.x - static_cast<int64_t>(part)) * kGroups;
    } else if constexpr (kCluster > 1) {
      auto& exchange = exchange_of<Stage, kCluster>();
      const unsigned long long* const arrived = &exchange.arrived[0];
      if (thread == 0) expect(arrived, kCluster * sizeof(typename Stage::Partial));
      constexpr int kWords = kGroups * 2;
      const float* const words = reinterpret_cast<const float*>(own);
      const float* const to = reinterpret_cast<const float*>(&exchange.from[0][part]);
      for (int k = thread; k < kCluster * kWords; k += kThreads) {
        push(to + k % kWords, arrived, static_cast<unsigned>(k / kWords), words[k % kWords]);
      }
      wait_for(arrived, 0);
      parts = exchange.from[0][0].of;
    }
    for (int g = thread / 32; g < kGroups; g += kThreads / 32) {
      const Moments norm = finished(parts + g);
      if (thread % 32 == 0) done[g] = norm;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRuns; ++r) norms[r] = done[row < kRows ? (column * kVector + r * kRun) / Op::kGroup : 0];
  }

  template <typename Before, typename After>
  __device__ void store(int pixel, const Channels (&x)[kAtOnce], const Before& before, const After& after,
                        const Moments (&norms)[kRuns]) const {
    using R = typename Op::Result;
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (pixel + k * kRows >= end) continue;
      const int64_t i = at(pixel + k * kRows);
      const auto near = Op::After::template load<kVector>(p, i);
      Vector<R, kVector> y;
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const float value = Op::Before::apply(widen(x[k].at[j]), before, j);
        const float normed = (value - norms[j / kRun].mean) * norms[j / kRun].squares;
        y.at[j] = Narrow<R>::from(Op::After::apply(normed, after, near, j));
      }
      store_at_once(static_cast<R*>(p.y) + i, y);
    }
  }

  __device__ void run() {
    begin_cluster<kCluster>(List<Stage>());
    begin_early();
    __shared__ Moments own[kGroups];
    const int start = row < kRows ? begin + row : end;
    const auto before = Op::Before::template of<kVector>(p, sample, channel);
    const auto after = Op::After::template of<kVector>(p, sample, channel);
    Channels x[kAtOnce];
    Moments moments[kRuns] = {};
    if constexpr (kPass != GroupNormPass::kApply) {
      if constexpr (kHeld > 0) {
        load(start, x);
        add(start, x, before, 0, moments);
      } else {
        int count = 0;
#pragma unroll 1
        for (int pixel = start; pixel < end; pixel += kAtOnce * kRows) {
          load(pixel, x);
          count += add(pixel, x, before, count, moments);
        }
      }
      reduce_block(moments, own);
    }
    if constexpr (kPass == GroupNormPass::kMoments) {
      __syncthreads();
      Moments* const to = reinterpret_cast<Moments*>(p.scratch) + blockIdx.x * int64_t{kGroups};
      for (int g = static_cast<int>(threadIdx.x); g < kGroups; g += kThreads) to[g] = own[g];
    } else {
      join_cluster<kCluster>();
      Moments norms[kRuns];
      finish(own, norms);
      if constexpr (kHeld > 0) {
        store(start, x, before, after, norms);
      } else {
#pragma unroll 1
        for (int pixel = start; pixel < end; pixel += kAtOnce * kRows) {
          load(pixel, x);
          store(pixel, x, before, after, norms);
        }
      }
    }
  }
};

}  // namespace onnxopt
