// Depthwise convolution by fused multiply-adds, NHWC, float32 sums: windows whose weights fit into registers, any
// storage dtype and channel count. Neighbouring threads take neighbouring channels of a tile, see held_tile.cuh; all
// threads of a block have tiles of the same rows.
//
// The last tile of a row is moved to the left until it is whole, and computes some columns a second time. Where the
// result is narrower than a tile, or padded by more than the window reaches, a thread takes output after output.
//
// Op is generated: Op::Stored and Op::Result are storage dtypes, Op::kChannels the channels of the result, of which x
// has Op::kHalves times as many, Op::Before and Op::After the prologue and the epilogue. Before::apply(x, of) and
// After::apply(sum, of, near, v) compute one element, of halves After::apply(sum, sum, of, near, v); Before::kStored
// tells whether its result needs no rounding to Stored; channel(params, c) reads what they need of channel c,
// After::load(params, at) what is read by element; of.start is what a sum starts from, of.half_start that of the other
// half. Where Op::kSums is set, each thread also leaves the sums of the outputs that it stores.
#pragma once

#include "depthwise/abi.h"
#include "depthwise/held_tile.cuh"
#include "device/early_launch.cuh"
#include "device/index.cuh"
#include "device/vector.cuh"

namespace onnxopt {

template <typename Op, typename W, int kVector, int kDown, int kAcross, int kThreads>
struct HeldWindow {
  using T = typename Op::Stored;
  using Tile = HeldTile<Op, W, kVector, kDown, kAcross, true>;
  using Single = HeldTile<Op, W, kVector, 1, 1, false>;
  static constexpr unsigned kGroups = Op::kChannels / kVector;
  static_assert(Op::kChannels % kVector == 0, "a thread has whole vectors");

  __device__ static HeldPlace place(const DepthwiseParams& p) {
    const DepthwiseGrid& grid = p.grid;
    const unsigned tile_row = quotient(blockIdx.x, grid.inner);
    const unsigned image = quotient(tile_row, grid.middle);
    const unsigned i = (blockIdx.x - tile_row * grid.inner.divisor) * kThreads + threadIdx.x;
    const unsigned across = i / kGroups;
    return {static_cast<int>(image), static_cast<int>(i - across * kGroups) * kVector,
            static_cast<int>(tile_row - image * grid.middle.divisor) * kDown, static_cast<int>(across) * kAcross, 0};
  }

  __device__ static void load_weights(const DepthwiseParams& p, int channel, typename Tile::Weights& weight) {
    const T* const from = static_cast<const T*>(p.input[Op::kWeight]) + channel;
#pragma unroll
    for (int k = 0; k < W::kTaps * Op::kHalves; ++k) {
      const int tap = k / Op::kHalves;
      const int first = k % Op::kHalves * kVector;
      const auto loaded = load_vector<T, kVector>(from + k * Op::kChannels);
#pragma unroll
      for (int v = 0; v < kVector; ++v) weight[tap / W::kWidth][tap % W::kWidth][first + v] = widen(loaded.at[v]);
    }
  }

  __device__ static void store_sums(const DepthwiseParams& p, const HeldPlace& nominal,
                                    const Vector<float, kVector>& total) {
    const int tiles_across = (p.out_width + kAcross - 1) / kAcross;
    const int64_t tile_row = static_cast<int64_t>(nominal.image) * p.grid.middle.divisor + nominal.top / kDown;
    store_vector(p.sums + (tile_row * tiles_across + nominal.left / kAcross) * Op::kChannels + nominal.channel, total);
  }

  __device__ static void run(const DepthwiseParams& p) {
    const HeldPlace nominal = place(p);
    const bool any = nominal.left < p.out_width;  // else the thread is one too many for its row
    typename Tile::Weights weight;
    if (any) load_weights(p, nominal.channel, weight);  // of constants, which no kernel writes
    begin_early();
    if (!any) return;
    Vector<float, kVector> total{};
    HeldPlace at = nominal;
    if (p.out_width >= kAcross && Tile::pads_fit(p)) {
      const int over = at.left + kAcross - p.out_width;
      at.repeated = over > 0 ? over : 0;
      at.left -= at.repeated;
      Tile(p, at).run(weight, total);
    } else {
#pragma unroll 1
      for (int k = 0; k < kDown * kAcross; ++k) {
        at.top = nominal.top + k / kAcross;
        at.left = nominal.left + k % kAcross;
        if (at.top < p.out_height && at.left < p.out_width) Single(p, at).run(weight, total);
      }
    }
    if constexpr (Op::kSums) store_sums(p, nominal, total);
  }
};

}  // namespace onnxopt
