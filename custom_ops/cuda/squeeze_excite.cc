#include "cuda/squeeze_excite.h"

#include <algorithm>
#include <limits>
#include <string>

#include "cuda/depthwise.h"
#include "kernel_file/variants.h"
#include "program/generated/costs.h"
#include "support/math.h"

namespace onnxopt::cuda {
namespace {

constexpr std::uint64_t kMaxInts = std::numeric_limits<std::int32_t>::max();
constexpr std::uint64_t kAccessBytes = 16;
using costs::squeeze_excite::kFoldBytes;
using costs::squeeze_excite::kMaxRead;

std::vector<Variant> OfMap(const Kernel& kernel) {
  if (kernel.variants.size() <= kSqueezeExciteMap) return {};
  return {kernel.variants.begin() + kSqueezeExciteMap, kernel.variants.end()};
}

void CheckAlignment(const SqueezeExciteCall& call) {
  if (!AreAligned({call.weight[0], call.weight[1]}, kAccessBytes)) {
    throw Error("a weight of a squeeze-excite is not aligned to " + std::to_string(kAccessBytes) + " bytes");
  }
}

}  // namespace

SqueezeExciteCudaKernel::SqueezeExciteCudaKernel(const Kernel& kernel, const Library& library,
                                                 const OrtKernelInfo* info)
    : FusedKernel(kernel),
      meaning_(kernel.meaning.As<SqueezeExcite>()),
      launcher_(kernel, library),
      allocator_(info),
      of_map_(OfMap(kernel)) {}

void SqueezeExciteCudaKernel::Compute(OrtKernelContext* context) const {
  const SqueezeExciteCall call = OpenCall(meaning_, context);
  if (call.y == nullptr) return;
  CheckAlignment(call);
  const Stream stream = launcher_.Enter(context);
  SqueezeExciteParams params{};
  params.mean = call.mean;
  std::copy_n(call.weight, 2, params.weight);
  std::copy_n(call.bias, 2, params.bias);
  params.y = call.y;
  params.rows = static_cast<int>(call.rows);
  CallScratch scratch(allocator_, context);
  if (meaning_.depthwise) LaunchMap(call, &params, stream, &scratch);
  const auto rows = static_cast<std::uint64_t>(call.rows);
  const std::size_t chosen = rows <= launcher_.device().multiprocessors ? kSqueezeExciteFew : kSqueezeExciteMany;
  const auto blocks = static_cast<unsigned>(CeilDiv(rows, kernel().variants[chosen].unroll));
  launcher_.Launch(chosen, blocks, reinterpret_cast<unsigned char*>(&params), stream);
}

void SqueezeExciteCudaKernel::LaunchMap(const SqueezeExciteCall& call, SqueezeExciteParams* params, Stream stream,
                                        CallScratch* scratch) const {
  const auto tile_bytes = static_cast<std::uint64_t>(meaning_.channels) * sizeof(float);
  const auto rows = static_cast<std::uint64_t>(call.rows);
  const auto prepare = [&](DepthwiseLaunch* launch) {
    const std::uint64_t of_row = launch->tiles * tile_bytes;
    const std::uint64_t folds = CeilDiv(of_row, kFoldBytes);
    if (std::max(launch->tiles, folds * rows) > kMaxInts) throw Error("a map of more tiles than a launch can add");
    auto* const sums = static_cast<float*>(scratch->Of(rows * (of_row + folds * tile_bytes)));
    launch->params.sums = sums;
    params->sums = sums;
    params->tiles = static_cast<int>(launch->tiles);
    const std::uint64_t floats = rows * of_row / sizeof(float);
    params->folded = sums + floats;
    params->tiles_of_fold = static_cast<int>(CeilDiv(launch->tiles, folds));
    params->folds = static_cast<int>(CeilDiv(launch->tiles, static_cast<std::uint64_t>(params->tiles_of_fold)));
  };
  params->pixels = static_cast<float>(call.map.out_height * call.map.out_width);
  RunCore<DepthwiseCore>(*meaning_.depthwise, {of_map_, kSqueezeExciteMap, launcher_}, call.map, GpuOf(launcher_),
                         stream, prepare);
  if (static_cast<std::uint64_t>(params->tiles) * tile_bytes > kMaxRead) Fold(params, stream);
}

void SqueezeExciteCudaKernel::Fold(SqueezeExciteParams* params, Stream stream) const {
  const auto blocks = static_cast<unsigned>(params->rows) * static_cast<unsigned>(params->folds);
  launcher_.Launch(kSqueezeExciteFold, blocks, reinterpret_cast<unsigned char*>(params), stream);
  params->sums = params->folded;
  params->tiles = params->folds;
}

}  // namespace onnxopt::cuda
