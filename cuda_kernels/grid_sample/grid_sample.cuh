// Samples of maps at computed positions, weighed and summed over points. A thread computes kVector channels of one
// output position: it works out the pixels and their weights once, and loads each pixel's channels in one access
// where these are neighbours.
//
// Neighbouring threads have neighbouring channels where those of the result are neighbours, else neighbouring
// positions.
#pragma once

#include "device/approximate.cuh"
#include "device/early_launch.cuh"
#include "device/index.cuh"
#include "device/load_or_zero.cuh"
#include "grid_sample/abi.h"
#include "grid_sample/taps.cuh"

namespace onnxopt {

// What a thread computes: channels from `channel` on of head `head` of b `batch`, at `position`.
struct GridSamplePlace {
  int64_t batch;
  int head;
  int channel;
  int64_t position;
};

template <typename K, int kVector>
__device__ inline GridSamplePlace grid_sample_place(const GridSampleParams& p, unsigned int i) {
  const Divisor<unsigned int>& inner = K::kResultVectors ? p.groups : p.positions;
  const unsigned int rest = quotient(i, inner);
  const unsigned int first = i - rest * inner.divisor;
  const Divisor<unsigned int>& second = K::kResultVectors ? p.heads : p.groups;
  const unsigned int outer = quotient(rest, second);
  const unsigned int middle = rest - outer * second.divisor;
  const Divisor<unsigned int>& third = K::kResultVectors ? p.positions : p.heads;
  const unsigned int batch = quotient(outer, third);
  const unsigned int last = outer - batch * third.divisor;
  if constexpr (K::kResultVectors) {
    return {p.first + batch, static_cast<int>(middle), static_cast<int>(first) * kVector, last};
  } else {
    return {p.first + batch, static_cast<int>(last), static_cast<int>(middle) * kVector, first};
  }
}

// Adds `factor` times a sample to the sums. data: the map from the thread's first channel on. left: channels from that
// one on.
template <typename K, int kVector>
__device__ inline void add_sample(const GridSampleParams& p, const typename K::Data* data, const GridSampleMap& map,
                                  const float (&coordinate)[K::kDims], float factor, int left, float (&sum)[kVector]) {
  constexpr int kTaps = taps_of(K::kMode);
  constexpr bool kDeep = K::kDims == 3;
  using Taps = GridTaps<kTaps>;
  const Taps across = taps_at<K::kMode, K::kPadding, K::kAlignCorners>(coordinate[0], map.width);
  const Taps down = taps_at<K::kMode, K::kPadding, K::kAlignCorners>(coordinate[1], map.height);
  const int step = static_cast<int>(p.data.pixel);
  const int64_t pitch = static_cast<int64_t>(map.width) * step;  // of rows
  int64_t column[kTaps];
#pragma unroll
  for (int w = 0; w < kTaps; ++w) column[w] = static_cast<int64_t>(across.at[w]) * step;
  Taps deep;
  if constexpr (kDeep) deep = taps_at<K::kMode, K::kPadding, K::kAlignCorners>(coordinate[2], map.depth);
#pragma unroll
  for (int d = 0; d < (kDeep ? kTaps : 1); ++d) {
#pragma unroll
    for (int h = 0; h < kTaps; ++h) {
      const bool in_row = down.inside[h] && (!kDeep || deep.inside[d]);
      const float of_row = (kDeep ? deep.weight[d] * down.weight[h] : down.weight[h]) * factor;
      const int64_t number = (kDeep ? static_cast<int64_t>(deep.at[d]) * map.height : 0) + down.at[h];
      const typename K::Data* const row = data + number * pitch;
#pragma unroll
      for (int w = 0; w < kTaps; ++w) {
        const bool inside = in_row && across.inside[w];
        const float weight = of_row * across.weight[w];
        const typename K::Data* const pixel = row + column[w];
        Vector<typename K::Data, kVector> values;
        if constexpr (K::kDataVectors || kVector == 1) {
          values = load_or_zero<typename K::Data, kVector>(pixel, inside);
        } else {
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            values.at[v] = load_or_zero<typename K::Data, 1>(pixel + v * p.data.channel, inside && v < left).at[0];
          }
        }
#pragma unroll
        for (int v = 0; v < kVector; ++v) sum[v] += weight * widen(values.at[v]);
      }
    }
  }
}

// K: the kernel's meaning. kThreads: of a block.
template <typename K, int kVector, int kThreads>
__device__ inline void grid_sample(const GridSampleParams& p) {
  begin_early();
  const unsigned int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= p.count) return;
  const GridSamplePlace place = grid_sample_place<K, kVector>(p, i);
  const auto* const data = static_cast<const typename K::Data*>(p.input[K::kData]) + place.batch * p.data.batch +
                           place.head * p.data.head + place.channel * p.data.channel;
  const auto* const grid = static_cast<const typename K::Grid*>(p.input[K::kX]) + place.batch * p.grid.batch +
                           place.head * p.grid.head + place.position * p.grid.position;
  const auto* weights = static_cast<const typename K::Weight*>(nullptr);
  if constexpr (K::kWeights >= 0) {
    weights = static_cast<const typename K::Weight*>(p.input[K::kWeights]) + place.batch * p.weights.batch +
              place.head * p.weights.head + place.position * p.weights.position;
  }
  const int left = p.channels - place.channel;
  constexpr int kUnrolled = K::kUnrolledPoints;
  float sum[kVector] = {};
#pragma unroll 1
  for (int m = 0; m < K::kMaps; ++m) {
    const GridSampleMap& map = p.map[m];
    const auto* const of_map = grid + map.grid;
#pragma unroll kUnrolled
    for (int k = 0; k < map.points; ++k) {
      float coordinate[K::kDims];
#pragma unroll
      for (int d = 0; d < K::kDims; ++d) {
        coordinate[d] = K::Before::apply(p, widen(of_map[k * p.grid.point + d]), d);
      }
      float factor = 1.0f;
      if constexpr (K::kWeights >= 0) factor = widen(weights[k * p.weights.point]);
      add_sample<K, kVector>(p, data + map.data, map, coordinate, factor, left, sum);
    }
    if constexpr (K::kWeights >= 0) weights += map.points * p.weights.point;
  }
  const int64_t at = place.batch * p.result.batch + place.head * p.result.head + place.channel * p.result.channel +
                     place.position * p.result.pixel;
  const int channel = K::kResultVectors ? place.head * p.channels + place.channel : place.channel;
  auto* const y = static_cast<typename K::Result*>(p.y) + at;
  Vector<typename K::Result, kVector> results;
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    if (v >= left) break;
    const float result = K::After::apply(p, sum[v], at + v * p.result.channel, channel + v);
    results.at[v] = Narrow<typename K::Result>::from(result);
    if constexpr (!K::kResultVectors) y[v * p.result.channel] = results.at[v];
  }
  if constexpr (K::kResultVectors) store_vector(y, results);
}

}  // namespace onnxopt
