#include "row_cuda_kernel.h"

namespace onnxopt::cuda {

void RowCudaKernel::Run(const Grid& grid, OrtKernelContext* context) const {
  const Stream stream = launcher_.Enter(context);
  const DeviceTraits& device = launcher_.device();
  const Gpu gpu{device.multiprocessors, device.major >= 9};
  const std::size_t rule = ChooseRowVariant(kernel(), grid, gpu);
  if (rule == kernel().variants.size()) {
    throw Error("no variant fits " + std::to_string(grid.rows()) + " rows of " + std::to_string(grid.columns) +
                " elements that lie " + std::to_string(grid.inner) + " apart");
  }
  const auto launch = [&](std::size_t chosen) {
    const Variant& variant = kernel().variants[chosen];
    alignas(16) unsigned char block[kMaxParams];
    FillRowParams(kernel(), variant, grid, block);
    launcher_.Launch(chosen, RowGridSize(variant, grid), block, stream);
  };
  const auto fits = [&](std::size_t k) { return RowVariantFits(kernel(), kernel().variants[k], grid, gpu); };
  launch(launcher_.Choose({grid.domain.count, grid.columns}, rule, stream, fits, launch));
}

}  // namespace onnxopt::cuda
