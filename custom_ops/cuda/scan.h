// Runs a scan on the GPU: picks a variant for the shapes at hand and launches it on ONNX Runtime's stream.
#pragma once

#include "call/rowwise.h"
#include "cuda/launcher.h"
#include "cuda/rowwise_variant.h"
#include "cuda/scratch.h"

namespace onnxopt::cuda {

// Launching does not synchronize, and allocates nothing but the sums of split rows, the first time on a stream: it is
// safe under CUDA graph capture. Thread-safe.
class ScanCudaKernel final : public RowKernel {
 public:
  // Loads every variant into the current context, if there is one. Throws Error if one does not load.
  ScanCudaKernel(const Kernel& kernel, const Library& library, const OrtKernelInfo* info)
      : RowKernel(kernel), launcher_(kernel, library), scratch_(info) {}

 private:
  void Run(const Grid& grid, OrtKernelContext* context) const override;

  void RunSplit(std::size_t chosen, const Grid& grid, Stream stream) const;

  const Launcher launcher_;
  const RowScratch scratch_;
};

}  // namespace onnxopt::cuda
