// Runs a rowwise node on the GPU: picks a variant for the shapes at hand and launches it on ONNX Runtime's stream.
#pragma once

#include "cuda_launcher.h"
#include "row_call.h"
#include "row_variant.h"

namespace onnxopt::cuda {

// Launching neither synchronizes nor allocates and is safe under CUDA graph capture. Thread-safe.
class RowCudaKernel final : public RowKernel {
 public:
  // Loads every variant into the current context, if there is one. Throws Error if one does not load.
  RowCudaKernel(const Kernel& kernel, const Library& library) : RowKernel(kernel), launcher_(kernel, library) {}

 private:
  void Run(const Grid& grid, OrtKernelContext* context) const override;

  const Launcher launcher_;
};

}  // namespace onnxopt::cuda
