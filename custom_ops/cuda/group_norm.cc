#include "cuda/group_norm.h"

#include <algorithm>

#include "kernel_file/variants.h"
#include "program/generated/costs.h"
#include "support/math.h"

namespace onnxopt::cuda {
namespace {

constexpr std::uint64_t kMaxBlocks = 0x7fffffff;
constexpr int kFirstClusterMajor = 9;      // compute capability
constexpr std::uint64_t kMomentBytes = 8;  // of a group
using costs::group_norm::kBlocksOfSplit;
using costs::group_norm::kIdleTwentieths;
using costs::group_norm::kVectorsOfSplit;

bool PartIsAligned(const GroupNorm& norm, const Transform& part, const CoreCall& call, std::uint64_t vector) {
  return std::all_of(part.reads.begin(), part.reads.end(), [&](const TransformRead& read) {
    const bool single = read.form == TransformForm::kGroup || read.form == TransformForm::kScalar;
    return single || IsAligned(call.input[read.input], Size(norm.inputs[read.input]) * vector);
  });
}

// Whether every tensor that is read or written in vectors is aligned to them.
bool AllAligned(const GroupNorm& norm, const CoreCall& call, std::uint64_t vector) {
  return IsAligned(call.y, Size(norm.output()) * vector) &&
         IsAligned(call.input[norm.x], Size(norm.dtype()) * vector) &&
         PartIsAligned(norm, norm.epilogue, call, vector) &&
         (!norm.prologue || PartIsAligned(norm, *norm.prologue, call, vector));
}

// Blocks that share a slab.
std::uint64_t PartsOf(const Variant& variant, const GroupNormVariant& shape, std::uint64_t pixels, std::uint64_t slabs,
                      const CoreGpu& gpu) {
  if (shape.layout == GroupNormLayout::kHeld) return variant.cluster;
  if (shape.layout == GroupNormLayout::kLooped) return 1;
  const std::uint64_t rows = variant.threads / shape.columns;
  const std::uint64_t wanted = CeilDiv(kBlocksOfSplit * gpu.multiprocessors, slabs);
  return std::max<std::uint64_t>(1, std::min(wanted, pixels / (rows * kVectorsOfSplit)));
}

}  // namespace

std::optional<GroupNormCore::Launch> GroupNormCore::LaunchOf(const GroupNorm& norm, const Variant& variant,
                                                             const CoreCall& call, const CoreGpu& gpu,
                                                             std::uint64_t pass) {
  const auto& shape = variant.shape.As<GroupNormVariant>();
  if (variant.cluster > 1 && gpu.major < kFirstClusterMajor) return std::nullopt;
  if (!AllAligned(norm, call, variant.vector)) return std::nullopt;
  const std::uint64_t slab = std::uint64_t{variant.vector} * shape.columns;
  const std::uint64_t slabs = static_cast<std::uint64_t>(norm.channels) / slab;
  const auto samples = static_cast<std::uint64_t>(call.batch);
  const auto pixels = static_cast<std::uint64_t>(call.height * call.width);
  if (samples > kMaxBlocks / slabs) return std::nullopt;
  const std::uint64_t wanted = PartsOf(variant, shape, pixels, samples * slabs, gpu);
  const std::uint64_t part = CeilDiv(pixels, wanted);
  const std::uint64_t parts = shape.layout == GroupNormLayout::kSplit ? CeilDiv(pixels, part) : wanted;
  if (samples * slabs > kMaxBlocks / parts || part * parts > kMaxBlocks) return std::nullopt;
  const std::uint64_t rows = variant.threads / shape.columns;
  if (shape.layout == GroupNormLayout::kHeld && CeilDiv(part, rows) > shape.held) return std::nullopt;
  Launch launch{};
  std::copy_n(call.input, norm.inputs.size(), launch.params.input);
  launch.params.y = call.y;
  launch.params.pixels = static_cast<int>(pixels);
  launch.params.slabs = static_cast<int>(slabs);
  launch.params.parts = static_cast<int>(parts);
  launch.params.part_pixels = static_cast<int>(part);
  launch.blocks = static_cast<unsigned>(samples * slabs * parts);
  if (shape.layout == GroupNormLayout::kSplit) {
    const std::uint64_t groups = slab / static_cast<std::uint64_t>(norm.group());
    launch.entry = pass;
    launch.passes = kGroupNormLaunches;
    launch.scratch = static_cast<std::size_t>(launch.blocks * groups * kMomentBytes);
  }
  return launch;
}

bool GroupNormCore::Fits(const GroupNorm& norm, const Variant& variant, const CoreCall& call, const CoreGpu& gpu) {
  return variant.shape.As<GroupNormVariant>().launch == 0 && LaunchOf(norm, variant, call, gpu, 0).has_value();
}

std::size_t GroupNormCore::Choose(const GroupNorm& norm, const std::vector<Variant>& variants, const CoreCall& call,
                                  const CoreGpu& gpu) {
  std::size_t chosen = variants.size();
  std::uint64_t blocks = 0;
  for (std::size_t k = 0; k < variants.size(); ++k) {
    const auto& shape = variants[k].shape.As<GroupNormVariant>();
    if (shape.launch != 0) continue;
    const std::optional<Launch> launch = LaunchOf(norm, variants[k], call, gpu, 0);
    if (!launch) continue;
    if (chosen == variants.size()) {
      chosen = k;
      blocks = launch->blocks;
      continue;
    }
    // A larger cluster where more than half of the GPU would be idle, as long as every row of threads has a pixel.
    const bool idle = 20 * blocks < kIdleTwentieths * gpu.multiprocessors;
    const unsigned rows = variants[k].threads / shape.columns;
    const bool busy = static_cast<unsigned>(launch->params.part_pixels) >= rows;
    if (shape.layout == GroupNormLayout::kHeld && idle && busy && launch->blocks > blocks) {
      chosen = k;
      blocks = launch->blocks;
    }
  }
  return chosen;
}

CallSize GroupNormCore::SizeOf(const GroupNorm& /*norm*/, const CoreCall& call) {
  return {static_cast<std::uint64_t>(call.elements()), static_cast<std::uint64_t>(call.height * call.width)};
}

}  // namespace onnxopt::cuda
