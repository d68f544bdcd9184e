#include "cuda/depthwise.h"

#include <algorithm>

#include "kernel_file/variants.h"
#include "program/divisor.h"
#include "program/generated/costs.h"
#include "support/math.h"

namespace onnxopt::cuda {
namespace {

constexpr std::uint64_t kMaxBlocks = 0x7fffffff;
constexpr std::uint64_t kMax31 = 0x7fffffff;
constexpr std::uint64_t kMax32 = 0xffffffff;
constexpr int kFirstBandedMajor = 9;          // compute capability
constexpr std::uint64_t kBandedChannels = 8;  // of a chunk
constexpr std::uint64_t kProductRows = 16;
constexpr std::uint64_t kOctet = 8;
constexpr std::uint64_t kExpandedAccess = 8;  // elements of an access to weights
using costs::depthwise::kExpandedBlocks;

// Whether every tensor that is read or written in vectors is aligned to them.
bool AllAligned(const Depthwise& depthwise, const CoreCall& call, std::uint64_t vector) {
  if (depthwise.expansion) {  // x and the result may lie anywhere
    return IsAligned(call.input[depthwise.weight], Size(depthwise.dtype()) * kExpandedAccess) &&
           IsAligned(call.input[depthwise.expansion->weight], Size(depthwise.dtype()) * kExpandedAccess);
  }
  bool aligned = IsAligned(call.y, Size(depthwise.output()) * vector) &&
                 IsAligned(call.input[depthwise.x], Size(depthwise.dtype()) * vector) &&
                 IsAligned(call.input[depthwise.weight], Size(depthwise.dtype()) * vector);
  for (const TransformRead& read : depthwise.epilogue.reads) {
    if (read.form != TransformForm::kElement) continue;
    aligned = aligned && IsAligned(call.input[read.input], Size(depthwise.inputs[read.input]) * vector);
  }
  return aligned;
}

// What is the same for every entry point; nothing where a number does not fit.
std::optional<DepthwiseParams> CommonParams(const Depthwise& depthwise, const CoreCall& call) {
  const Window& window = depthwise.window;
  const auto channels = static_cast<std::uint64_t>(depthwise.channels);
  const auto reach = [&](int axis) {
    return static_cast<std::uint64_t>(window.dilations[axis] * window.kernel[axis] + window.strides[axis] * 256);
  };
  // Signed positions of inputs and outputs, padding and tiles that overhang included; elements of a row.
  const std::uint64_t rows = static_cast<std::uint64_t>(std::max(call.height, call.out_height * window.strides[0]));
  const std::uint64_t columns = static_cast<std::uint64_t>(std::max(call.width, call.out_width * window.strides[1]));
  if (static_cast<std::uint64_t>(call.batch) > kMax31 || rows + reach(0) > kMax31 ||
      (columns + reach(1)) > kMax31 / static_cast<std::uint64_t>(depthwise.filters()) / sizeof(float)) {
    return std::nullopt;
  }
  DepthwiseParams params{};
  std::copy_n(call.input, depthwise.inputs.size(), params.input);
  params.y = call.y;
  params.batch = static_cast<int>(call.batch);
  params.height = static_cast<int>(call.height);
  params.width = static_cast<int>(call.width);
  params.channels = static_cast<int>(channels);
  params.out_height = static_cast<int>(call.out_height);
  params.out_width = static_cast<int>(call.out_width);
  params.pad_top = static_cast<int>(call.pad_top);
  params.pad_left = static_cast<int>(call.pad_left);
  return params;
}

// Fills in the grid; false where there are too many blocks.
bool Fill(std::uint64_t inner, std::uint64_t middle, std::uint64_t outer, std::uint64_t blocks,
          DepthwiseLaunch* launch) {
  if (blocks > kMaxBlocks || std::max({inner, middle, outer}) > kMax31) return false;
  launch->params.grid = {MakeDivisor32(inner), MakeDivisor32(middle), MakeDivisor32(outer)};
  launch->blocks = static_cast<unsigned>(blocks);
  return true;
}

bool FillDirect(const Variant& variant, const DepthwiseVariant& shape, const CoreCall& call, DepthwiseLaunch* launch) {
  const std::uint64_t groups = static_cast<std::uint64_t>(launch->params.channels) / variant.vector;
  const std::uint64_t across = CeilDiv(static_cast<std::uint64_t>(call.out_width), shape.across);
  const std::uint64_t inner = CeilDiv(groups * across, variant.threads);
  const std::uint64_t middle = CeilDiv(static_cast<std::uint64_t>(call.out_height), shape.down);
  const auto batch = static_cast<std::uint64_t>(call.batch);
  if (inner * variant.threads > kMax31 || inner * middle > kMaxBlocks) return false;
  launch->tiles = middle * across;
  return Fill(inner, middle, groups, inner * middle * batch, launch);
}

// Offsets within the images of a tile have 32 bits there.
bool FillBanded(const DepthwiseVariant& shape, const CoreCall& call, std::uint64_t channels, std::size_t size,
                DepthwiseLaunch* launch) {
  const std::uint64_t inputs = static_cast<std::uint64_t>(call.height) * static_cast<std::uint64_t>(call.width);
  const std::uint64_t outputs =
      static_cast<std::uint64_t>(call.out_height) * static_cast<std::uint64_t>(call.out_width);
  const std::uint64_t most = kMax32 / size / channels / shape.images;
  if (inputs > most || outputs > most) return false;
  const std::uint64_t inner = CeilDiv(channels, kBandedChannels * shape.chunks);
  const std::uint64_t rows = shape.down * kProductRows / shape.across / shape.images;
  const std::uint64_t across = CeilDiv(static_cast<std::uint64_t>(call.out_width), kOctet * shape.across);
  const std::uint64_t of_image = across * CeilDiv(static_cast<std::uint64_t>(call.out_height), rows);
  const std::uint64_t groups = CeilDiv(static_cast<std::uint64_t>(call.batch), shape.images);
  if (of_image > kMaxBlocks / inner) return false;
  launch->tiles = of_image;
  return Fill(inner, across, of_image, inner * of_image * groups, launch);
}

// Blocks that share a tile take channels in turn, as many as there are idle places for.
bool FillExpanded(const DepthwiseVariant& shape, const CoreCall& call, std::uint64_t channels, const CoreGpu& gpu,
                  DepthwiseLaunch* launch) {
  const std::uint64_t across = CeilDiv(static_cast<std::uint64_t>(call.out_width), shape.across);
  const std::uint64_t of_image = across * CeilDiv(static_cast<std::uint64_t>(call.out_height), shape.down);
  if (static_cast<std::uint64_t>(call.batch) > kMaxBlocks / of_image) return false;
  const std::uint64_t tiles = of_image * static_cast<std::uint64_t>(call.batch);
  const std::uint64_t rounds = CeilDiv(channels, kOctet * shape.chunks);
  const std::uint64_t wanted = CeilDiv(kExpandedBlocks * std::max(gpu.multiprocessors, 1U), tiles);
  const std::uint64_t of_block = CeilDiv(rounds, std::min(rounds, wanted));
  const std::uint64_t inner = CeilDiv(rounds, of_block);
  launch->tiles = of_image;
  return Fill(inner, across, of_image, inner * tiles, launch);
}

bool Prefers(const Variant& variant, const DepthwiseLaunch& launch, const CoreGpu& gpu) {
  const auto& shape = variant.shape.As<DepthwiseVariant>();
  const std::int64_t width = launch.params.out_width;
  const std::uint64_t threads = std::uint64_t{launch.blocks} * variant.threads;
  return shape.narrowest <= width && (shape.widest == 0 || width <= shape.widest) &&
         threads >= shape.fewest * gpu.multiprocessors;
}

}  // namespace

std::optional<DepthwiseLaunch> DepthwiseCore::LaunchOf(const Depthwise& depthwise, const Variant& variant,
                                                       const CoreCall& call, const CoreGpu& gpu,
                                                       std::uint64_t /*pass*/) {
  const auto& shape = variant.shape.As<DepthwiseVariant>();
  const auto channels = static_cast<std::uint64_t>(depthwise.channels);
  const bool banded = shape.layout == DepthwiseLayout::kBanded;
  if (channels % variant.vector != 0 || !AllAligned(depthwise, call, variant.vector)) return std::nullopt;
  if (variant.shared > gpu.shared || (banded && gpu.major < kFirstBandedMajor)) return std::nullopt;
  const std::optional<DepthwiseParams> params = CommonParams(depthwise, call);
  if (!params) return std::nullopt;
  DepthwiseLaunch launch{};
  launch.params = *params;
  const auto fill = [&] {
    if (banded) return FillBanded(shape, call, channels, Size(depthwise.dtype()), &launch);
    if (shape.layout == DepthwiseLayout::kExpanded) return FillExpanded(shape, call, channels, gpu, &launch);
    return FillDirect(variant, shape, call, &launch);
  };
  return fill() ? std::optional<DepthwiseLaunch>(launch) : std::nullopt;
}

std::size_t DepthwiseCore::Choose(const Depthwise& depthwise, const std::vector<Variant>& variants,
                                  const CoreCall& call, const CoreGpu& gpu) {
  std::size_t chosen = variants.size();
  for (std::size_t k = 0; k < variants.size(); ++k) {
    const std::optional<DepthwiseLaunch> launch = LaunchOf(depthwise, variants[k], call, gpu, 0);
    if (!launch) continue;
    if (Prefers(variants[k], *launch, gpu)) return k;
    chosen = std::min(chosen, k);
  }
  return chosen;
}

}  // namespace onnxopt::cuda
