// Runs a scan on the GPU: picks a variant for the shapes at hand and launches it on ONNX Runtime's stream.
#pragma once

#include <vector>

#include "call/programs/rowwise.h"
#include "cuda/launch/launcher.h"
#include "cuda/launch/scratch.h"
#include "cuda/programs/rowwise_variant.h"

namespace onnxopt::cuda {

// Launching does not synchronize, and allocates nothing but the sums of split rows, the first time on a stream: it is
// safe under CUDA graph capture. Thread-safe.
class ScanCudaKernel final : public RowKernel {
 public:
  // Loads every variant into the current context, if there is one. Throws Error if one does not load.
  ScanCudaKernel(const Kernel& kernel, const Library& library, const OrtKernelInfo* info);

 private:
  void Run(const Grid& grid, OrtKernelContext* context) const override;

  // The entry point to launch, or their number where none fits.
  std::size_t Choose(const Grid& grid, const Gpu& gpu) const;
  void RunSplit(std::size_t chosen, const Grid& grid, Stream stream, OrtKernelContext* context) const;

  const std::vector<Variant> rowwise_;  // as the kernel's, of rowwise kernels that fit the same grids
  const Launcher launcher_;
  const Allocator allocator_;
};

}  // namespace onnxopt::cuda
