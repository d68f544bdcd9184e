// Runs a fused node on the GPU: picks a variant for the shapes at hand and launches it on ONNX Runtime's stream.
#pragma once

#include <vector>

#include "call.h"
#include "cuda_library.h"

namespace onnxopt::cuda {

// Launching neither synchronizes nor allocates and is safe under CUDA graph capture. Thread-safe.
class CudaKernel final : public PointwiseKernel {
 public:
  // Loads every variant into the current context, if there is one. Throws Error if one does not load.
  CudaKernel(const Kernel& kernel, const Library& library);

 private:
  void Run(const Domain& domain, OrtKernelContext* context) const override;

  const Driver& driver_;
  std::vector<DriverKernel> variants_;  // as kernel().variants
};

}  // namespace onnxopt::cuda
