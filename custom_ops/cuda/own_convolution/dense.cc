#include "cuda/own_convolution/dense.h"

#include <algorithm>
#include <limits>

#include "dense_convolution/abi.h"
#include "program/divisor.h"
#include "program/generated/block.h"
#include "program/generated/costs.h"
#include "support/math.h"

namespace onnxopt::cuda {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kOutputs = 16;  // of a product
constexpr std::int64_t kAccess = 16;   // bytes
constexpr int kFirstMajor = 8;         // compute capability, which has the products and the copies
using costs::convolution::kDenseFill;

const DenseTile& TileOf(const Variant& variant) {
  const bool of_block = variant.shape.Is<BlockVariant>();
  return of_block ? variant.shape.As<BlockVariant>().tile : variant.shape.As<DenseConvolutionVariant>().tile;
}

unsigned StepOf(const Variant& variant) {
  return variant.shape.Is<BlockVariant>() ? variant.shape.As<BlockVariant>().step : 0U;
}

bool HaveAccess(const OwnOperands& at) {
  return AreAligned({at.x, at.w, at.bias, at.residual, at.slope, at.y}, kAccess);
}

}  // namespace

bool DenseConvolutions::TakesStep(unsigned step, const ConvolutionSizes& sizes, const OwnOperands& at) const {
  return Choose(step, sizes) < kernel_.variants.size() && HaveAccess(at);
}

DenseConvolutions::Tiles DenseConvolutions::TilesOf(std::size_t variant, const ConvolutionSizes& sizes) const {
  const DenseTile& tile = TileOf(kernel_.variants[variant]);
  const std::int64_t warps = kernel_.variants[variant].threads / kWarpThreads / static_cast<unsigned>(tile.parts);
  Tiles tiles{kOutputs / tile.across * tile.products * warps, tile.across, 0, 0};
  tiles.rows = CeilDiv(sizes.output_h, tiles.down);
  tiles.in_row = CeilDiv(sizes.output_w, tiles.across);
  return tiles;
}

std::size_t DenseConvolutions::Choose(unsigned step, const ConvolutionSizes& sizes) const {
  const auto& variants = kernel_.variants;
  const std::int64_t elements = kAccess / static_cast<std::int64_t>(Size(kernel_.outputs[0]));
  const std::int64_t pixels = sizes.x_pixel | sizes.residual_pixel | sizes.y_pixel;
  const bool fits = std::max({sizes.h * sizes.w, sizes.output_h * sizes.output_w, pixels}) < kMax / 2 &&
                    sizes.output_pixels() < kMax / 2 && pixels % elements == 0;
  std::size_t chosen = variants.size();
  std::int64_t least = 0;
  for (std::size_t k = 0; fits && k < variants.size(); ++k) {
    const DenseTile& tile = TileOf(variants[k]);
    if (StepOf(variants[k]) != step || tile.channels != sizes.c || tile.filters != sizes.k) continue;
    if (tile.pixels != 0 && sizes.output_pixels() > tile.pixels) continue;
    const DeviceTraits& device = launcher_.device();
    if (variants[k].shared > device.shared || device.major < kFirstMajor) continue;
    const Tiles tiles = TilesOf(k, sizes);
    const std::int64_t all = sizes.n * tiles.per_image(), outputs = tiles.down * tiles.across;
    const double filled = static_cast<double>(sizes.output_h * sizes.output_w);
    const bool wastes = filled < kDenseFill * static_cast<double>(tiles.per_image() * outputs);
    if (all > kMax || (wastes && all > device.multiprocessors)) continue;
    const std::int64_t seen = (tiles.down + sizes.r - 1) * (tiles.across + sizes.s - 1);
    const std::int64_t work = CeilDiv(all, std::int64_t{device.multiprocessors}) * (outputs + seen);
    if (chosen < variants.size() && work >= least) continue;
    chosen = k;
    least = work;
  }
  return chosen;
}

bool DenseConvolutions::Run(const ConvolutionSizes& sizes, const OwnOperands& at, Stream stream) const {
  return RunStep(0, kernel_.meaning.As<Convolution>().activation_value, sizes, at, stream);
}

bool DenseConvolutions::RunStep(unsigned step, float activation_value, const ConvolutionSizes& sizes,
                                const OwnOperands& at, Stream stream) const {
  const std::size_t chosen = Choose(step, sizes);
  if (chosen == kernel_.variants.size() || !HaveAccess(at)) return false;
  const Tiles tiles = TilesOf(chosen, sizes);
  DenseConvolutionParams params{at.x,
                                at.w,
                                at.bias,
                                at.residual,
                                at.slope,
                                at.y,
                                static_cast<int>(sizes.x_pixel),
                                static_cast<int>(sizes.residual_pixel),
                                static_cast<int>(sizes.y_pixel),
                                static_cast<int>(sizes.h),
                                static_cast<int>(sizes.w),
                                static_cast<int>(sizes.output_h),
                                static_cast<int>(sizes.output_w),
                                static_cast<int>(sizes.pads[1]),
                                static_cast<int>(sizes.pads[2]),
                                static_cast<unsigned>(sizes.n * tiles.per_image()),
                                activation_value,
                                MakeDivisor32(tiles.in_row),
                                MakeDivisor32(tiles.per_image())};
  const unsigned blocks = std::min(params.tiles, launcher_.Resident(chosen));
  launcher_.Launch(chosen, blocks, reinterpret_cast<unsigned char*>(&params), stream);
  return true;
}

}  // namespace onnxopt::cuda
