// Group norms of NHWC tensors. A block takes some pixels of a slab: neighbouring channels of one sample, whole groups
// of them, wide enough that loads are coalesced. A thread has one vector of channels and every kRows-th pixel.
//
// The block's mean of each group comes first, then the squared deviations from it: two sums over the block. Blocks of a
// slab merge theirs through the shared memory of a cluster, or through scratch memory by two launches. Where a block's
// pixels fit into its registers (kHeld > 0), x is read once; else every thread merges batch after batch of its pixels.
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

__device__ constexpr int greatest_divisor(int a, int b) { return b == 0 ? a : greatest_divisor(b, a % b); }

// Op is generated: Stored and Result, the storage types of x and y; kX, x's number; kChannels, kGroup (channels of one)
// and kEpsilon; Before and After, programs with the values that they read. kVector: channels of a thread, a power of 2.
// kColumns: vectors of a slab. kHeld: vectors of a thread that stay in registers, 0 where x is read twice. kCluster:
// blocks that share a slab, where kPass is kWhole.
template <typename Op, int kVector, int kColumns, int kThreads, int kHeld, int kCluster, GroupNormPass kPass>
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
  static constexpr int kEntries = Op::kGroup / kRun * kRows;  // sums of threads that make up one of a group
  static constexpr int kAtOnce = kHeld > 0 ? kHeld : 4;       // vectors that are loaded before any is used
  static constexpr int kStep = kRows * Op::kChannels;         // elements from a vector of a thread to its next
  static constexpr bool kKeeps = kHeld * kVector * kThreads <= 32 * 256;  // whether elements stay widened in registers
  static_assert(kSlab % Op::kGroup == 0 && Op::kChannels % kSlab == 0 && kRows > 0, "slabs are whole groups");

  struct Stage {
    struct Partial {
      Moments of[kGroups];
    };
  };

  // A vector with what is in front of the norm applied to it.
  struct Values {
    float at[kVector];
  };

  // What becomes of an element of a group: (x - center) * scale + shift; no shift where the center is the group's mean.
  struct Norm {
    float center;
    float scale;
    float shift;
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

  __device__ static void forget(Values (&)[kAtOnce]) {}

  template <typename Of>
  __device__ static float value(const Channels& x, const Of& of, int j) {
    return Op::Before::apply(widen(x.at[j]), of, j);
  }

  template <typename Of>
  __device__ static float value(const Values& x, const Of&, int j) {
    return x.at[j];
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

  // Of every run the sum of its elements.
  template <typename X, typename Of>
  __device__ static void sum(const X (&x)[kAtOnce], int left, const Of& of, float (&runs)[kRuns]) {
    float channels[kVector] = {};
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const float more = value(x[k], of, j);
        if (k * kRows < left) channels[j] += more;
      }
    }
    fold(channels, runs);
  }

  // Of every run the sum of its elements' squared deviations from `centers`.
  template <typename X, typename Of>
  __device__ static void sum_squares(const X (&x)[kAtOnce], int left, const Of& of, const float (&centers)[kRuns],
                                     float (&runs)[kRuns]) {
    float channels[kVector] = {};
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const float apart = value(x[k], of, j) - centers[j / kRun];
        if (k * kRows < left) channels[j] += apart * apart;
      }
    }
    fold(channels, runs);
  }

  // The moments of every run of a thread's pixels, batch after batch. Returns how many pixels there are.
  template <typename Of>
  __device__ int stream(const Of& of, Moments (&moments)[kRuns]) const {
    int count = 0;
    int64_t i = first;
#pragma unroll 1
    for (int left = end - start; left > 0; left -= kAtOnce * kRows, i += kAtOnce * kStep) {
      Channels x[kAtOnce];
      load(i, left, x);
      int here = 1;
#pragma unroll
      for (int k = 1; k < kAtOnce; ++k) here += k * kRows < left ? 1 : 0;
      count += here;
      const float elements = static_cast<float>(here * kRun);
      const float share = ptx::reciprocal(elements);
      const float portion = static_cast<float>(here) * ptx::reciprocal(static_cast<float>(count));
      float means[kRuns], squares[kRuns];
      sum(x, left, of, means);
#pragma unroll
      for (int r = 0; r < kRuns; ++r) means[r] *= share;
      forget(x);
      sum_squares(x, left, of, means, squares);
#pragma unroll
      for (int r = 0; r < kRuns; ++r) merge(moments[r], {means[r], squares[r]}, elements, portion);
    }
    return count;
  }

  // Adds up what the threads have of every group, by a warp a group: use(group, sum) in each of its lanes.
  template <typename Use>
  __device__ void add_up(float* entries, const float (&runs)[kRuns], const Use& use) const {
    if (row < kRows) {
#pragma unroll
      for (int r = 0; r < kRuns; ++r) entries[(column * kRuns + r) * kRows + row] = runs[r];
    }
    __syncthreads();
    for (int g = static_cast<int>(threadIdx.x) / 32; g < kGroups; g += kWarps) {
      float sum = 0.0f;
#pragma unroll
      for (int k = 0; k < kEntries; k += 32) {
        if (k + 32 <= kEntries || k + lane() < kEntries) sum += entries[g * kEntries + k + lane()];
      }
      use(g, sum_of_lanes(sum));
    }
  }

  __device__ static float scale_of(float squares, float elements) {
    return inverse_sqrt(ptx::div(squares, elements) + Op::kEpsilon);
  }

  // By a warp, from the moments of every part, part k's of a group at all[k * kGroups]: its mean and 1 / deviation.
  __device__ Moments finished(const Moments* all) const {
    const float elements = static_cast<float>(p.pixels) * Op::kGroup;
    const float near = all[0].mean;
    float mean = 0.0f;
    for (int k = lane(); k < parts; k += 32) mean += (all[k * kGroups].mean - near) * weight(k);
    mean = near + ptx::div(sum_of_lanes(mean), elements);
    float squares = 0.0f;
    for (int k = lane(); k < parts; k += 32) {
      const Moments of = all[k * kGroups];
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

  // The moments of the block's groups: found(group, mean, squares) in each lane of a warp. Leaves the means in `means`.
  template <typename X, typename Of, typename Found>
  __device__ void measure(X (&x)[kAtOnce], const Of& of, float* means, const Found& found) const {
    __shared__ float entries[kGroups * kEntries];
    const int left = end - start;
    const float share = begin < end ? inverse(static_cast<float>(end - begin) * Op::kGroup) : 0.0f;
    float runs[kRuns], centers[kRuns];
    Moments moments[kRuns] = {};
    float count = 0.0f;  // elements of a run
    if constexpr (kHeld > 0) {
      sum(x, left, of, runs);
      forget(x);
    } else {
      count = static_cast<float>(stream(of, moments) * kRun);
#pragma unroll
      for (int r = 0; r < kRuns; ++r) runs[r] = moments[r].mean * count;
    }
    add_up(entries, runs, [&](int g, float sum) {
      if (lane() == 0) means[g] = sum * share;
    });
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRuns; ++r) centers[r] = means[group_of(r)];
    if constexpr (kHeld > 0) {
      sum_squares(x, left, of, centers, runs);
      forget(x);
    } else {
#pragma unroll
      for (int r = 0; r < kRuns; ++r) {
        const float apart = moments[r].mean - centers[r];
        runs[r] = moments[r].squares + apart * apart * count;
      }
    }
    add_up(entries, runs, [&](int g, float sum) { found(g, means[g], sum); });
  }

  // Measures the block and, with the others of its slab, tells how every group is normed.
  template <typename X, typename Of>
  __device__ void find(X (&x)[kAtOnce], const Of& of, Norm (&norms)[kRuns]) const {
    __shared__ float means[kGroups];
    __shared__ Moments done[kGroups];
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if constexpr (kPass == GroupNormPass::kApply) {
      const auto* const all = reinterpret_cast<const Moments*>(p.scratch) + int64_t{blockIdx.x - part} * kGroups;
      for (int g = warp; g < kGroups; g += kWarps) {
        const Moments norm = finished(all + g);
        if (lane() == 0) done[g] = norm;
      }
    } else if constexpr (kCluster == 1) {
      const float elements = static_cast<float>(p.pixels) * Op::kGroup;
      measure(x, of, means, [&](int g, float mean, float squares) {
        if (lane() == 0) done[g] = {mean, scale_of(squares, elements)};
      });
    } else {
      auto& exchange = exchange_of<Stage, kCluster>();
      const unsigned long long* const arrived = &exchange.arrived[0];
      if (threadIdx.x == 0) expect(arrived, kCluster * sizeof(typename Stage::Partial));
      join_cluster<kCluster>();
      measure(x, of, means, [&](int g, float mean, float squares) {
        if (lane() < kCluster) {
          push(&exchange.from[0][part].of[g], arrived, static_cast<unsigned>(lane()), Moments{mean, squares});
        }
      });
      wait_for(arrived, 0);
      for (int g = warp; g < kGroups; g += kWarps) {
        const Moments norm = finished(&exchange.from[0][0].of[g]);
        if (lane() == 0) done[g] = norm;
      }
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      const Moments norm = done[group_of(r)];
      const float center = kHeld > 0 ? means[group_of(r)] : norm.mean;
      norms[r] = {center, norm.squares, (center - norm.mean) * norm.squares};
    }
  }

  template <typename X, typename Before, typename After>
  __device__ void store(int64_t i, int left, const X (&x)[kAtOnce], const Before& before, const After& after,
                        const Norm (&norms)[kRuns]) const {
    using R = typename Op::Result;
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (k * kRows >= left) continue;
      const auto near = Op::After::template load<kVector>(p, i + k * kStep);
      Vector<R, kVector> y;
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const Norm& norm = norms[j / kRun];
        const float apart = value(x[k], before, j) - norm.center;
        const float normed = kHeld > 0 ? apart * norm.scale + norm.shift : apart * norm.scale;
        y.at[j] = Narrow<R>::from(Op::After::apply(normed, after, near, j));
      }
      store_at_once(static_cast<R*>(p.y) + i + k * kStep, y);
    }
  }

  template <typename X, typename Before>
  __device__ void run_held(X (&x)[kAtOnce], const Before& before) const {
    const auto after = Op::After::template of<kVector>(p, sample, channel);
    Norm norms[kRuns];
    find(x, before, norms);
    store(first, end - start, x, before, after, norms);
  }

  // Reads x a second time; in a launch of its own the first vectors are on their way already.
  template <typename Before>
  __device__ void run_again(Channels (&x)[kAtOnce], const Before& before) const {
    const auto after = Op::After::template of<kVector>(p, sample, channel);
    Norm norms[kRuns];
    find(x, before, norms);
    if constexpr (kWhole) load(first, end - start, x);
    int64_t i = first;
    int left = end - start;
#pragma unroll 1
    while (left > 0) {
      store(i, left, x, before, after, norms);
      i += kAtOnce * kStep;
      left -= kAtOnce * kRows;
      load(i, left, x);
    }
  }

  __device__ void run() {
    begin_cluster<kCluster>(List<Stage>());
    begin_early();
    Channels x[kAtOnce];
    if constexpr (kHeld > 0 || kPass == GroupNormPass::kApply) load(first, end - start, x);
    const auto before = Op::Before::template of<kVector>(p, sample, channel);
    if constexpr (kPass == GroupNormPass::kMoments) {
      __shared__ float means[kGroups];
      Moments* const to = reinterpret_cast<Moments*>(p.scratch) + int64_t{blockIdx.x} * kGroups;
      measure(x, before, means, [&](int g, float mean, float squares) {
        if (lane() == 0) to[g] = {mean, squares};
      });
    } else if constexpr (kKeeps && kHeld > 0) {
      Values values[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
#pragma unroll
        for (int j = 0; j < kVector; ++j) values[k].at[j] = value(x[k], before, j);
      }
      run_held(values, before);
    } else if constexpr (kHeld > 0) {
      run_held(x, before);
    } else {
      run_again(x, before);
    }
  }
};

}  // namespace onnxopt
