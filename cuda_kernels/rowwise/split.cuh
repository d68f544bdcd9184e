// split: few long rows, each cut into parts for blocks of their own; any length, any alignment, any GPU. One launch for
// every stage and one for what is stored: a launch merges what the blocks of the launches before it left in `scratch`,
// and leaves its own partial result there. The row is read again by every launch, mostly from the L2 cache.
#pragma once

#include "rowwise/looped.cuh"

namespace onnxopt {

// kPass: which launch this is; the number of stages for the last one.
template <typename Op, typename Index, int kWidth, int kUnroll, int kThreads, int kPass, bool kRagged, char... kModes>
struct Split {
  using Part = Looped<Op, Index, kWidth, kUnroll, kThreads, 1, kRagged, kModes...>;
  using B = RowBodyOf<Op, kWidth>;

  Part part;
  const Index row;
  const Index rows;
  const Index parts;
  const Index index;  // of this part

  template <int kStage>
  __device__ void stages(List<>, unsigned char*) {
    part.store(row, index == 0 && threadIdx.x == 0);
  }

  template <int kStage, typename Stage, typename... Rest>
  __device__ void stages(List<Stage, Rest...>, unsigned char* scratch) {
    using Partial = typename Stage::Partial;
    constexpr unsigned kSize = (sizeof(Partial) + 7) / 8 * 8;
    unsigned char* const kept = scratch + static_cast<uint64_t>(row) * parts * kSize;
    if constexpr (kStage < kPass) {
      Partial partial = Stage::identity();
      for (Index k = threadIdx.x % 32; k < parts; k += 32) {
        Stage::merge(partial, *reinterpret_cast<const Partial*>(kept + k * kSize));
      }
      reduce_lanes<Stage, 32>(partial);
      B::template finish<Stage>(part.row, partial, part.row_in);
      stages<kStage + 1>(List<Rest...>(), scratch + static_cast<uint64_t>(rows) * parts * kSize);
    } else {
      const Partial partial = part.template reduced<Stage>();
      if (threadIdx.x == 0) *reinterpret_cast<Partial*>(kept + index * kSize) = partial;
    }
  }
};

template <typename Op, typename Index, int kWidth, int kUnroll, int kThreads, int kPass, bool kRagged, char... kModes>
__device__ inline void split_part(const SplitParams<Index, Op::Inputs::size, Op::Outputs::size>& params) {
  const Index parts = static_cast<Index>(params.parts.parts);
  const Index row = blockIdx.x / parts;
  const Index index = blockIdx.x % parts;
  const Index columns = static_cast<Index>(params.of.columns);
  const Index begin = index * static_cast<Index>(params.parts.part_columns);
  const Index left = columns - begin;
  const Index length = static_cast<Index>(params.parts.part_columns);
  Split<Op, Index, kWidth, kUnroll, kThreads, kPass, kRagged, kModes...> split{{params.of,
                                                                                row * columns,
                                                                                columns,
                                                                                begin,
                                                                                begin + (left < length ? left : length),
                                                                                static_cast<Index>(threadIdx.x),
                                                                                {},
                                                                                {}},
                                                                               row,
                                                                               static_cast<Index>(params.of.rows),
                                                                               parts,
                                                                               index};
  split.part.start();
  split.template stages<0>(typename Op::Stages(), static_cast<unsigned char*>(params.parts.scratch));
}

template <typename Op, typename Index, int kWidth, int kUnroll, int kThreads, int kPass, char... kModes>
__device__ inline void split(const SplitParams<Index, Op::Inputs::size, Op::Outputs::size>& params) {
  begin_early();
  with_vectors<Op, Index, kWidth, kModes...>(params.of, [&](auto width, auto ragged) {
    split_part<Op, Index, width.value, kUnroll, kThreads, kPass, ragged.value, kModes...>(params);
  });
}

}  // namespace onnxopt
