#include "cuda/programs/scan.h"

#include <algorithm>
#include <cstring>

#include "kernel_file/programs/rowwise.h"
#include "program/generated/costs.h"
#include "program/programs/rowwise_params.h"
#include "program/programs/scan.h"
#include "support/math.h"

namespace onnxopt::cuda {
namespace {

using costs::scan::kBlocksOfLoop;
using costs::scan::kBlocksOfSplit;
using costs::scan::kChunksOfSplit;
using costs::scan::kMaxParts;

std::uint64_t Chunk(const Variant& variant) { return std::uint64_t{variant.threads} * variant.unroll * variant.vector; }

const RowShape& ShapeOf(const Variant& variant) { return variant.shape.As<RowShape>(); }

// Rowwise entry points that fit where those of a scan do: scans go chunk by chunk, along strided rows too.
std::vector<Variant> AsRowwise(std::vector<Variant> variants) {
  for (Variant& variant : variants) {
    RowShape shape = ShapeOf(variant);
    if (shape.layout == Layout::kStrided) variant.unroll = 0;
    if (shape.layout == Layout::kSplit) shape.layout = Layout::kLooped;
    variant.shape.Set(shape);
  }
  return variants;
}

// Two launches pay much earlier than one for each of several stages.
bool SplitPays(const Variant& variant, const Grid& grid, const Gpu& gpu) {
  const bool few = grid.rows() * kBlocksOfLoop < gpu.multiprocessors;
  return ShapeOf(variant).launch == 0 && few && grid.columns >= kChunksOfSplit * Chunk(variant);
}

}  // namespace

ScanCudaKernel::ScanCudaKernel(const Kernel& kernel, const Library& library, const OrtKernelInfo* info)
    : RowKernel(kernel, kernel.meaning.As<Scan>().rows),
      rowwise_(AsRowwise(kernel.variants)),
      launcher_(kernel, library),
      allocator_(info) {}

// Of strided variants, which fit any length: the first that has a chunk of a row's length, else the last one like it.
std::size_t ScanCudaKernel::Choose(const Grid& grid, const Gpu& gpu) const {
  const std::vector<Variant>& variants = kernel().variants;
  std::size_t chosen = variants.size();
  for (std::size_t k = 0; k < variants.size(); ++k) {
    const Variant& variant = variants[k];
    const RowShape& shape = ShapeOf(variant);
    if (shape.layout == Layout::kSplit && !SplitPays(variant, grid, gpu)) continue;
    if (!RowVariantFits(rows(), rowwise_[k], grid, gpu)) continue;
    if (shape.layout != Layout::kStrided) return k;
    const bool others = chosen < variants.size();
    if (others && (variant.modes != variants[chosen].modes || variant.index != variants[chosen].index)) return chosen;
    chosen = k;
    if (grid.columns <= std::uint64_t{shape.lanes} * variant.unroll) return chosen;
  }
  return chosen;
}

void ScanCudaKernel::Run(const Grid& grid, OrtKernelContext* context) const {
  const Stream stream = launcher_.Enter(context);
  const DeviceTraits& device = launcher_.device();
  const std::size_t chosen = Choose(grid, {device.multiprocessors, device.shared, 1});
  if (chosen == kernel().variants.size()) {
    throw Error("no variant fits " + std::to_string(grid.rows()) + " rows of " + std::to_string(grid.columns) +
                " elements that lie " + std::to_string(grid.inner) + " apart");
  }
  const Variant& variant = kernel().variants[chosen];
  if (ShapeOf(variant).layout == Layout::kSplit) return RunSplit(chosen, grid, stream, context);
  alignas(16) unsigned char block[kMaxParams];
  FillRowParams(rows(), variant, grid, block);
  launcher_.Launch(chosen, RowGridSize(variant, grid, 0), block, stream);
}

// The first launch leaves the sum of every part, the second one goes on from the sums of those before its own.
void ScanCudaKernel::RunSplit(std::size_t chosen, const Grid& grid, Stream stream, OrtKernelContext* context) const {
  const Variant& first = kernel().variants[chosen];
  const Cut cut =
      CutColumns(grid.columns, grid.rows(), Chunk(first), kBlocksOfSplit * launcher_.device().multiprocessors);
  CallScratch scratch(allocator_, context);
  const Parts parts{scratch.Of(cut.blocks * sizeof(std::uint64_t)), cut.parts, cut.columns};
  alignas(16) unsigned char block[kMaxParams];
  std::memcpy(block, &parts, sizeof(parts));
  FillRowParams(rows(), first, grid, block + sizeof(parts));
  for (std::size_t pass = 0; pass < kScanLaunches; ++pass) {
    launcher_.Launch(chosen + pass, static_cast<unsigned>(cut.blocks), block, stream);
  }
}

}  // namespace onnxopt::cuda
