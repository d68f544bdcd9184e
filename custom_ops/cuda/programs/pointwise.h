// Runs a fused node on the GPU: picks a variant for the shapes at hand and launches it on ONNX Runtime's stream.
#pragma once

#include "call/programs/pointwise.h"
#include "cuda/launch/launcher.h"

namespace onnxopt::cuda {

// Launching neither synchronizes nor allocates and is safe under CUDA graph capture. Thread-safe.
class PointwiseCudaKernel final : public PointwiseKernel {
 public:
  // Loads every variant into the current context, if there is one. Throws Error if one does not load.
  PointwiseCudaKernel(const Kernel& kernel, const Library& library, const OrtKernelInfo* /*info*/)
      : PointwiseKernel(kernel), launcher_(kernel, library) {}

 private:
  void Run(const Domain& domain, OrtKernelContext* context) const override;

  const Launcher launcher_;
};

}  // namespace onnxopt::cuda
