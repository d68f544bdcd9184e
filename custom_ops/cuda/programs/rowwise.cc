#include "cuda/programs/rowwise.h"

#include <cstring>

#include "kernel_file/programs/rowwise.h"
#include "program/programs/rowwise_params.h"

namespace onnxopt::cuda {
namespace {

// Blocks of a cluster, by compute capability: 9.0 and 10.0 have clusters beyond the portable 8.
unsigned LargestCluster(int major) { return major < 9 ? 1 : major <= 10 ? 16 : 8; }

// Whether a kernel's blocks stay for row after row.
bool Stays(Layout layout) { return layout == Layout::kPiped || layout == Layout::kRing; }

}  // namespace

void RowwiseCudaKernel::Run(const Grid& grid, OrtKernelContext* context) const {
  const Stream stream = launcher_.Enter(context);
  const DeviceTraits& device = launcher_.device();
  const Gpu gpu{device.multiprocessors, device.shared, LargestCluster(device.major)};
  const std::size_t rule = ChooseRowVariant(rows(), kernel().variants, grid, gpu);
  if (rule == kernel().variants.size()) {
    throw Error("no variant fits " + std::to_string(grid.rows()) + " rows of " + std::to_string(grid.columns) +
                " elements that lie " + std::to_string(grid.inner) + " apart");
  }
  CallScratch scratch(allocator_, context);
  const auto launch = [&](std::size_t chosen) {
    const Variant& variant = kernel().variants[chosen];
    const Layout layout = variant.shape.As<RowShape>().layout;
    if (IsSplit(layout)) return RunSplit(chosen, grid, gpu, stream, &scratch);
    alignas(16) unsigned char block[kMaxParams];
    FillRowParams(rows(), variant, grid, block);
    const unsigned resident = Stays(layout) ? launcher_.Resident(chosen) : 0;
    launcher_.Launch(chosen, RowGridSize(variant, grid, resident), block, stream);
  };
  const auto fits = [&](std::size_t k) { return RowVariantFits(rows(), kernel().variants[k], grid, gpu); };
  launch(launcher_.Choose({grid.domain.count, grid.columns}, rule, stream, fits, launch));
}

// One launch after the other: each reads what the blocks of those before it left.
void RowwiseCudaKernel::RunSplit(std::size_t chosen, const Grid& grid, const Gpu& gpu, Stream stream,
                                 CallScratch* scratch) const {
  const Variant& first = kernel().variants[chosen];
  const Cut cut = CutRows(first, grid, gpu);
  const Parts parts{scratch->Of(ScratchBytes(rows(), grid, cut)), cut.parts, cut.columns};
  alignas(16) unsigned char block[kMaxParams];
  std::memcpy(block, &parts, sizeof(parts));
  FillRowParams(rows(), first, grid, block + sizeof(parts));
  for (std::size_t pass = 0; pass <= rows().stages.size(); ++pass) {
    launcher_.Launch(chosen + pass, static_cast<unsigned>(cut.blocks), block, stream);
  }
}

}  // namespace onnxopt::cuda
