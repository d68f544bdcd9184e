// Group norms of NHWC tensors. A block takes some pixels of a slab: neighbouring channels of one sample, whole groups
// of them, wide enough that loads are coalesced. A thread has one vector of channels and every kRows-th pixel.
//
// A thread finds the moments of its own elements in one pass: it sums what lies apart from one of them, and the squares
// of that. A warp merges a group's moments of all threads, and the blocks of a slab merge theirs through the shared
// memory of a cluster, or through scratch memory by two launches. Where a block's pixels fit into its registers
// (kHeld > 0), x is read once; else every thread takes batch after batch of its pixels.
#pragma once

#include "device/approximate.cuh"
#include "device/early_launch.cuh"
#include "device/load_or_zero.cuh"
#include "device/ptx.cuh"
#include "device/reduce.cuh"
#include "device/scalar.cuh"
#include "device/vector.cuh"
#include "group_norm/abi.h"
#include "group_norm/moments.cuh"

namespace onnxopt {

enum class GroupNormPass { kWhole, kMoments, kApply };

// Op is generated: Stored and Result, the storage types of x and y; kX, x's number; kChannels, kGroup (channels of one)
// and kEpsilon; Before and After, programs with the values that they read. What After begins with is lead(): factors
// and terms of a channel, which join those of the norm. kVector: channels of a thread, a power of 2. kColumns: vectors
// of a slab. kHeld: vectors of a thread that stay in registers, 0 where x is read twice. kCluster: blocks that share a
// slab, where kPass is kWhole. kResident: blocks of a multiprocessor that registers suffice for.
template <typename Op, int kVector, int kColumns, int kThreads, int kHeld, int kCluster, int kResident,
          GroupNormPass kPass>
struct GroupNormBlock {
  using T = typename Op::Stored;
  using Channels = Vector<T, kVector>;
  static constexpr bool kWhole = kPass == GroupNormPass::kWhole;
  static constexpr int kSlab = kVector * kColumns;
  static constexpr int kSlabs = Op::kChannels / kSlab;
  static constexpr int kGroups = kSlab / Op::kGroup;
  static constexpr int kRows = kThreads / kColumns;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kRun = greatest_divisor(Op::kGroup, kVector);  // channels of a thread that share a group
  static constexpr int kRuns = kVector / kRun;
  static constexpr int kRunsOfGroup = Op::kGroup / kRun;
  static constexpr int kStride = stride_of_entries(kRuns * kRows, kColumns);
  static constexpr int kAtOnce = kHeld > 0 ? kHeld : 4;  // vectors that are loaded before any is used
  static constexpr int kStep = kRows * Op::kChannels;    // elements from a vector of a thread to its next
  // Whether elements stay widened in registers.
  static constexpr bool kKeeps = (kHeld * kVector + 80) * kThreads * kResident <= 64 << 10;
  static_assert(kSlab % Op::kGroup == 0 && Op::kChannels % kSlab == 0 && kRows > 0, "slabs are whole groups");

  struct Stage {
    struct Partial {
      Moments of[kGroups];
    };
  };

  // Of a vector with what is in front of the norm applied to it: how far the elements lie from their runs' centers.
  struct Apart {
    float at[kVector];
  };

  // What becomes of an element before After is applied: (x - center) * scale + shift.
  struct Norms {
    float scale[kVector];
    float shift[kVector];
  };

  const GroupNormParams& p;
  const int parts;
  const int part;
  const int slab;
  const int64_t sample;
  const int column;
  const int row;
  const int channel;  // the thread's first
  const int begin;    // the block's first pixel
  const int end;
  const int start;      // the thread's first pixel, `end` where it has none
  const int64_t first;  // the thread's first element

  __device__ explicit GroupNormBlock(const GroupNormParams& params)
      : p(params),
        parts(kWhole ? kCluster : params.parts),
        part(static_cast<int>(blockIdx.x % static_cast<unsigned>(parts))),
        slab(static_cast<int>(blockIdx.x / static_cast<unsigned>(parts) % kSlabs)),
        sample(blockIdx.x / static_cast<unsigned>(parts) / kSlabs),
        column(static_cast<int>(threadIdx.x % kColumns)),
        row(static_cast<int>(threadIdx.x / kColumns)),
        channel(slab * kSlab + column * kVector),
        begin(part * params.part_pixels),
        end(begin + params.part_pixels < params.pixels ? begin + params.part_pixels : params.pixels),
        start(row < kRows ? begin + row : end),
        first((sample * params.pixels + start) * Op::kChannels + channel) {}

  // The group in the slab of a thread's run of channels.
  __device__ int group_of(int run) const { return (column * kVector + run * kRun) / Op::kGroup; }

  __device__ static int lane() { return static_cast<int>(threadIdx.x % 32); }

  // Loads a thread's next kAtOnce vectors from element i on, of which those within `left` pixels are there.
  __device__ void load(int64_t i, int left, Channels (&x)[kAtOnce]) const {
    const T* const from = static_cast<const T*>(p.input[Op::kX]) + i;
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      x[k] = load_or_zero<T, kVector>(from + k * kStep, k * kRows < left);
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

  __device__ static void forget(Apart (&)[kAtOnce]) {}

  template <typename Of>
  __device__ static float apart(const Channels& x, const Of& of, const float (&centers)[kRuns], int j) {
    return Op::Before::apply(widen(x.at[j]), of, j) - centers[j / kRun];
  }

  template <typename Of>
  __device__ static float apart(const Apart& x, const Of&, const float (&)[kRuns], int j) {
    return x.at[j];
  }

  // The first element of every run.
  template <typename Of>
  __device__ static void first_of(const Channels& x, const Of& of, float (&runs)[kRuns]) {
#pragma unroll
    for (int r = 0; r < kRuns; ++r) runs[r] = Op::Before::apply(widen(x.at[r * kRun]), of, r * kRun);
  }

  // Adds up a run's channels.
  __device__ static void fold(float (&channels)[kVector], float (&runs)[kRuns]) {
#pragma unroll
    for (int apart = kRun / 2; apart > 0; apart /= 2) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        if (j % kRun < apart) channels[j] += channels[j + apart];
      }
    }
#pragma unroll
    for (int r = 0; r < kRuns; ++r) runs[r] = channels[r * kRun];
  }

  // Merges a batch into the moments of the runs, given how far it lies from their means; from one of its own elements
  // in a first batch. So no square is much larger than what it adds. share: 1 / all elements of a run with these.
  template <typename X, typename Of>
  __device__ static void add(const X (&x)[kAtOnce], int left, const Of& of, float share, float (&means)[kRuns],
                             float (&squares)[kRuns]) {
    float sums[kVector] = {}, more[kVector] = {}, moved[kRuns], added[kRuns];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const float far = apart(x[k], of, means, j);
        if (k * kRows < left) {
          sums[j] += far;
          more[j] += far * far;
        }
      }
    }
    fold(sums, moved);
    fold(more, added);
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      const float step = moved[r] * share;
      means[r] += step;
      squares[r] += added[r] - moved[r] * step;
    }
  }

  // Vectors of a thread within `left` pixels, of a batch.
  __device__ static int count_of(int left) {
    int count = 0;
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) count += k * kRows < left ? 1 : 0;
    return count;
  }

  __device__ static float share_of(int vectors) { return ptx::reciprocal(static_cast<float>(vectors * kRun)); }

  // The moments of every run of a thread's pixels, batch after batch.
  template <typename Of>
  __device__ void stream(const Of& of, float (&means)[kRuns], float (&squares)[kRuns]) const {
    int count = 0;
    int64_t i = first;
#pragma unroll 1
    for (int left = end - start; left > 0; left -= kAtOnce * kRows, i += kAtOnce * kStep) {
      Channels x[kAtOnce];
      load(i, left, x);
      if (count == 0) first_of(x[0], of, means);
      count += count_of(left);
      add(x, left, of, share_of(count), means, squares);
    }
  }

  // Merges the threads' moments: found(group, moments of the block's elements) in each lane of a warp.
  template <typename Found>
  __device__ void merge_threads(const float (&means)[kRuns], const float (&squares)[kRuns], const Found& found) const {
    __shared__ Moments entries[kRuns * kRows * kStride];
    const bool empty = start >= end;
    if (row < kRows) {
#pragma unroll
      for (int r = 0; r < kRuns; ++r) {
        entries[(r * kRows + row) * kStride + column] = empty ? Moments{} : Moments{means[r], squares[r]};
      }
    }
    __syncthreads();
    const int pixels = begin < end ? end - begin : 0;
    const float share = pixels > 0 ? inverse(static_cast<float>(pixels) * Op::kGroup) : 0.0f;
    for (int g = static_cast<int>(threadIdx.x) / 32; g < kGroups; g += kWarps) {
      const auto over = [&](const auto& use) {
        for_each_entry<kRunsOfGroup, kRuns, kRows, kStride>(entries, g * kRunsOfGroup, pixels, use);
      };
      const int leading = g * kRunsOfGroup;
      const float near = entries[leading % kRuns * kRows * kStride + leading / kRuns].mean;
      float mean = 0.0f, sum = 0.0f;
      over([&](const Moments& of, float count) { mean += (of.mean - near) * (count * kRun); });
      mean = near + sum_of_lanes(mean) * share;
      over([&](const Moments& of, float count) {
        const float apart = of.mean - mean;
        sum += of.squares + apart * apart * (count * kRun);
      });
      found(g, Moments{mean, sum_of_lanes(sum)});
    }
  }

  __device__ static float scale_of(float squares, float elements) {
    return inverse_sqrt(ptx::div(squares, elements) + Op::kEpsilon);
  }

  // By a warp, from the moments of every part, part k's of a group at all[k * step]: its mean and 1 / deviation.
  __device__ Moments finished(const Moments* all, int step) const {
    const float elements = static_cast<float>(p.pixels) * Op::kGroup;
    const float near = all[0].mean;
    float mean = 0.0f;
#pragma unroll 4
    for (int k = lane(); k < parts; k += 32) mean += (all[k * step].mean - near) * weight(k);
    mean = near + ptx::div(sum_of_lanes(mean), elements);
    float squares = 0.0f;
#pragma unroll 4
    for (int k = lane(); k < parts; k += 32) {
      const Moments of = all[k * step];
      const float apart = of.mean - mean;
      squares += of.squares + apart * apart * weight(k);
    }
    return {mean, scale_of(sum_of_lanes(squares), elements)};
  }

  // Elements of a group in part k.
  __device__ float weight(int k) const {
    const int left = p.pixels - k * p.part_pixels;
    return left <= 0 ? 0.0f : static_cast<float>(left < p.part_pixels ? left : p.part_pixels) * Op::kGroup;
  }

  // The mean and 1 / deviation of every group of the slab, from the threads' moments and those of the other blocks.
  __device__ void find(const float (&means)[kRuns], const float (&squares)[kRuns], Moments* done) const {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if constexpr (kPass == GroupNormPass::kApply) {
      const auto* const all = reinterpret_cast<const Moments*>(p.scratch) + int64_t{blockIdx.x - part} * kGroups;
      for (int g = warp; g < kGroups; g += kWarps) {
        const Moments norm = finished(all + g * parts, 1);
        if (lane() == 0) done[g] = norm;
      }
    } else if constexpr (kCluster == 1) {
      const float elements = static_cast<float>(p.pixels) * Op::kGroup;
      merge_threads(means, squares, [&](int g, const Moments& of) {
        if (lane() == 0) done[g] = {of.mean, scale_of(of.squares, elements)};
      });
    } else {
      auto& exchange = exchange_of<Stage, kCluster>();
      const unsigned long long* const arrived = &exchange.arrived[0];
      if (threadIdx.x == 0) expect(arrived, kCluster * sizeof(typename Stage::Partial));
      join_cluster<kCluster>();
      merge_threads(means, squares, [&](int g, const Moments& of) {
        if (lane() < kCluster) push(&exchange.from[0][part].of[g], arrived, static_cast<unsigned>(lane()), of);
      });
      wait_for(arrived, 0);
      for (int g = warp; g < kGroups; g += kWarps) {
        const Moments norm = finished(&exchange.from[0][0].of[g], kGroups);
        if (lane() == 0) done[g] = norm;
      }
    }
    __syncthreads();
  }

  // From what find() left; x is centered by `centers`.
  template <typename After>
  __device__ Norms norms_of(const Moments* done, const float (&centers)[kRuns], const After& after) const {
    Norms norms;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const Moments norm = done[group_of(j / kRun)];
      norms.scale[j] = norm.squares;
      norms.shift[j] = (centers[j / kRun] - norm.mean) * norm.squares;
      Op::After::lead(norms.scale[j], norms.shift[j], after, j);
    }
    return norms;
  }

  template <typename X, typename Before, typename After>
  __device__ void store(int64_t i, int left, const X (&x)[kAtOnce], const Before& before, const After& after,
                        const float (&centers)[kRuns], const Norms& norms) const {
    using R = typename Op::Result;
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (k * kRows >= left) continue;
      const auto near = Op::After::template load<kVector>(p, i + k * kStep);
      Vector<R, kVector> y;
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const float normed = apart(x[k], before, centers, j) * norms.scale[j] + norms.shift[j];
        y.at[j] = Narrow<R>::from(Op::After::apply(normed, after, near, j));
      }
      store_at_once(static_cast<R*>(p.y) + i + k * kStep, y);
    }
  }

  // x: what load() has brought, or how far it lies from its first element, `centers`.
  template <typename X, typename Before>
  __device__ void run_held(X (&x)[kAtOnce], const Before& before, const float (&centers)[kRuns]) const {
    __shared__ Moments done[kGroups];
    const auto after = Op::After::template of<kVector>(p, sample, channel);
    const int left = end - start;
    float means[kRuns], squares[kRuns] = {};
#pragma unroll
    for (int r = 0; r < kRuns; ++r) means[r] = centers[r];
    add(x, left, before, share_of(count_of(left)), means, squares);
    forget(x);
    find(means, squares, done);
    store(first, left, x, before, after, centers, norms_of(done, centers, after));
  }

  // Reads x from its end on, of which the cache holds the most; in a launch of its own the first vectors are on their
  // way already.
  template <typename Before>
  __device__ void run_again(Channels (&x)[kAtOnce], const Before& before, int64_t i, int left) const {
    __shared__ Moments done[kGroups];
    const auto after = Op::After::template of<kVector>(p, sample, channel);
    float centers[kRuns] = {}, squares[kRuns] = {};
    if constexpr (kWhole) stream(before, centers, squares);
    find(centers, squares, done);
#pragma unroll
    for (int r = 0; r < kRuns; ++r) centers[r] = done[group_of(r)].mean;
    const Norms norms = norms_of(done, centers, after);
    if constexpr (kWhole) load(i, left, x);
#pragma unroll 1
    while (i >= first) {
      store(i, left, x, before, after, centers, norms);
      i -= kAtOnce * kStep;
      left += kAtOnce * kRows;
      load(i, i >= first ? left : 0, x);
    }
  }

  __device__ void run() {
    begin_cluster<kCluster>(List<Stage>());
    begin_early();
    Channels x[kAtOnce];
    const int left = end - start;
    const int batches = left <= 0 ? 0 : (left - 1) / (kAtOnce * kRows);  // ahead of the last
    const int64_t last = first + int64_t{batches} * kAtOnce * kStep;
    const int tail = left - batches * kAtOnce * kRows;
    if constexpr (kHeld > 0) load(first, left, x);
    if constexpr (kPass == GroupNormPass::kApply) load(last, tail, x);
    const auto before = Op::Before::template of<kVector>(p, sample, channel);
    if constexpr (kPass == GroupNormPass::kMoments) {
      Moments* const to = reinterpret_cast<Moments*>(p.scratch) + int64_t{blockIdx.x - part} * kGroups + part;
      float means[kRuns] = {}, squares[kRuns] = {};
      stream(before, means, squares);
      merge_threads(means, squares, [&](int g, const Moments& of) {
        if (lane() == 0) to[g * parts] = of;  // the parts of a group are neighbours
      });
    } else if constexpr (kHeld > 0) {
      float centers[kRuns];
      first_of(x[0], before, centers);
      if constexpr (kKeeps) {
        Apart kept[kAtOnce];
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
#pragma unroll
          for (int j = 0; j < kVector; ++j) kept[k].at[j] = apart(x[k], before, centers, j);
        }
        run_held(kept, before, centers);
      } else {
        run_held(x, before, centers);
      }
    } else {
      run_again(x, before, last, tail);
    }
  }
};

}  // namespace onnxopt
