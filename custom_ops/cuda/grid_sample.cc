#include "cuda/grid_sample.h"

#include <algorithm>
#include <limits>
#include <string>

#include "kernel_file/variants.h"
#include "program/divisor.h"
#include "support/math.h"

namespace onnxopt::cuda {
namespace {

constexpr std::uint64_t kMaxThreads = std::numeric_limits<std::int32_t>::max();  // of a launch, for Divisor

// Whether neighbouring channels are neighbours in memory everywhere that a vector of them begins.
bool HasVectors(const GridSampleCall& call, const void* from, const GridSampleMapSteps& steps, std::int64_t vector,
                std::size_t size) {
  if (call.channels % vector != 0 || steps.channel != 1) return false;
  const bool even = steps.batch % vector == 0 && steps.head % vector == 0 && steps.pixel % vector == 0;
  return even && IsAligned(from, static_cast<std::uint64_t>(vector) * size);
}

bool HasDataVectors(const GridSample& meaning, const GridSampleCall& call, std::int64_t vector) {
  const auto begins = [&](const GridSampleMap& map) { return map.data % vector == 0; };
  return HasVectors(call, call.input[meaning.data], call.data, vector, Size(meaning.dtype())) &&
         std::all_of(std::begin(call.map), std::end(call.map), begins);
}

// As kernels are generated for (onnxopt/program/grid_sample.py).
bool ReadsVectors(const GridSample& meaning) {
  return meaning.view ? meaning.view->channel == 1 || meaning.view->channels == 1 : !meaning.planes;
}

// The product, or kMaxThreads + 1 where it is above kMaxThreads.
std::uint64_t Threads(std::initializer_list<std::uint64_t> factors) {
  std::uint64_t product = 1;
  for (const std::uint64_t factor : factors) {
    if (factor > kMaxThreads / product) return kMaxThreads + 1;
    product *= factor;
  }
  return product;
}

}  // namespace

std::optional<GridSampleCore::Launch> GridSampleCore::LaunchOf(const GridSample& meaning, const Variant& variant,
                                                               const GridSampleCall& call, const CoreGpu& /*gpu*/,
                                                               std::uint64_t pass) {
  const auto vector = static_cast<std::int64_t>(variant.vector);
  if (vector > 1) {
    if (ReadsVectors(meaning) && !HasDataVectors(meaning, call, vector)) return std::nullopt;
    if (!meaning.result_planes && !HasVectors(call, call.y, call.result, vector, Size(meaning.output()))) {
      return std::nullopt;
    }
  }
  const std::uint64_t groups = CeilDiv(call.channels, vector);
  const auto positions = static_cast<std::uint64_t>(call.positions);
  const auto heads = static_cast<std::uint64_t>(call.heads);
  const std::uint64_t each = Threads({groups, positions, heads});
  if (each > kMaxThreads) return std::nullopt;
  const std::uint64_t at_once = kMaxThreads / each;
  const auto all = static_cast<std::uint64_t>(call.batch);
  const std::uint64_t first = pass * at_once;
  Launch launch{};
  GridSampleParams& params = launch.params;
  std::copy_n(call.input, meaning.inputs.size(), params.input);
  params.y = call.y;
  params.first = static_cast<long long>(first);
  params.count = static_cast<unsigned>(std::min(at_once, all - first) * each);
  params.channels = static_cast<int>(call.channels);
  params.data = call.data;
  params.result = call.result;
  params.grid = call.grid;
  params.weights = call.weights;
  std::copy(std::begin(call.map), std::end(call.map), params.map);
  params.groups = MakeDivisor32(groups);
  params.positions = MakeDivisor32(positions);
  params.heads = MakeDivisor32(heads);
  launch.blocks = static_cast<unsigned>(CeilDiv(params.count, variant.threads));
  launch.passes = CeilDiv(all, at_once);
  return launch;
}

CallSize GridSampleCore::SizeOf(const GridSample& /*meaning*/, const GridSampleCall& call) {
  return {call.result_shape.count(), static_cast<std::uint64_t>(call.channels)};
}

std::string GridSampleCore::Describe(const GridSample& /*meaning*/, const GridSampleCall& call) {
  return "a result of " + ToString(call.result_shape);
}

}  // namespace onnxopt::cuda
