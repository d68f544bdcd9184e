// split_strided: long rows whose elements are `inner` apart, on too few tiles of neighbouring rows; each row is cut
// into parts for blocks of their own, as in split.cuh: one launch for every stage and one for what is stored.
#pragma once

#include "rowwise/strided.cuh"

namespace onnxopt {

// kPass: which launch this is; the number of stages for the last one. `scratch` has the partial results of a stage by
// part, then by row.
template <typename Op, typename Index, int kWidth, int kLanes, int kThreads, int kPass, char... kModes>
struct SplitStrided {
  using Part = Strided<Op, Index, kWidth, 0, kLanes, kThreads, kModes...>;

  Part part;
  const Index row;  // the first of the thread's
  const Index rows;
  const Index parts;
  const Index index;  // of this part

  template <int kStage>
  __device__ void stages(List<>, unsigned char*) {
    part.store(row, index == 0);
  }

  template <int kStage, typename Stage, typename... Rest>
  __device__ void stages(List<Stage, Rest...>, unsigned char* scratch) {
    using Partial = typename Stage::Partial;
    constexpr unsigned kSize = (sizeof(Partial) + 7) / 8 * 8;
    const auto partial_of = [&](Index k, int j) {
      return reinterpret_cast<Partial*>(scratch + (static_cast<uint64_t>(k) * rows + row + j) * kSize);
    };
    Partial partial[kWidth];
    if constexpr (kStage < kPass) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        partial[j] = Stage::identity();
        for (Index k = threadIdx.x / Part::kSide; part.live && k < parts; k += kLanes) {
          Stage::merge(partial[j], *partial_of(k, j));
        }
      }
      part.template reduce_shares<Stage>(partial);
      part.template finish<Stage>(partial);
      stages<kStage + 1>(List<Rest...>(), scratch + static_cast<uint64_t>(rows) * parts * kSize);
    } else {
      part.template reduce<Stage>(partial);
      if (!part.live || threadIdx.x >= Part::kSide) return;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) *partial_of(index, j) = partial[j];
    }
  }
};

template <typename Op, typename Index, int kWidth, int kLanes, int kThreads, int kPass, char... kModes>
__device__ inline void split_strided(const SplitParams<Index, Op::Inputs::size, Op::Outputs::size>& params) {
  begin_early();
  const Index columns = static_cast<Index>(params.of.columns);
  const Index inner = static_cast<Index>(params.of.inner);
  const Index parts = static_cast<Index>(params.parts.parts);
  const Index length = static_cast<Index>(params.parts.part_columns);
  constexpr int kSide = kThreads / kLanes;
  const Index tiles = (inner - 1) / (kSide * kWidth) + 1;
  const Index index = blockIdx.x % parts;
  const Index tile = blockIdx.x / parts;
  const Index outer = tile / tiles;
  const Index column = (tile % tiles * kSide + threadIdx.x % kSide) * kWidth;
  const Index begin = index * length;
  const Index left = columns - begin;
  SplitStrided<Op, Index, kWidth, kLanes, kThreads, kPass, kModes...> split{{params.of,
                                                                             outer * columns * inner + column,
                                                                             columns,
                                                                             inner,
                                                                             begin,
                                                                             begin + (left < length ? left : length),
                                                                             column < inner,
                                                                             {},
                                                                             {},
                                                                             {}},
                                                                            outer * inner + column,
                                                                            static_cast<Index>(params.of.rows),
                                                                            parts,
                                                                            index};
  if constexpr (!Op::kStoresElements && kPass == Op::Stages::size) {
    if (index != 0) return;  // another block stores the values of the rows
  }
  split.part.start();
  split.template stages<0>(typename Op::Stages(), static_cast<unsigned char*>(params.parts.scratch));
}

}  // namespace onnxopt
