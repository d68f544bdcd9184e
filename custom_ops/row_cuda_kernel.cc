#include "row_cuda_kernel.h"

namespace onnxopt::cuda {

void RowCudaKernel::Run(const Grid& grid, OrtKernelContext* context) const {
  const Stream stream = launcher_.Enter(context);
  const DeviceTraits& device = launcher_.device();
  const Gpu gpu{device.multiprocessors, device.shared, device.major >= 9};
  const std::size_t chosen = ChooseRowVariant(kernel(), grid, gpu);
  if (chosen == kernel().variants.size()) {
    throw Error("no variant fits " + std::to_string(grid.rows()) + " rows of " + std::to_string(grid.columns) +
                " elements that lie " + std::to_string(grid.inner) + " apart");
  }
  const Variant& variant = kernel().variants[chosen];
  alignas(16) unsigned char block[kMaxParams];
  FillRowParams(kernel(), variant, grid, block);
  const unsigned resident = variant.layout == Layout::kPiped ? launcher_.Resident(chosen) : 0;
  launcher_.Launch(chosen, RowGridSize(variant, grid, resident), block, stream);
}

}  // namespace onnxopt::cuda
