// Runs a pool on the GPU.
#pragma once

#include "call/fused_kernel.h"
#include "call/pool.h"
#include "cuda/launch/launcher.h"

namespace onnxopt::cuda {

// Launching does not synchronize and allocates nothing: it is safe under CUDA graph capture. Thread-safe.
class PoolCudaKernel final : public FusedKernel {
 public:
  PoolCudaKernel(const Kernel& kernel, const Library& library) : FusedKernel(kernel), launcher_(kernel, library) {}

  void Compute(OrtKernelContext* context) const override;

 private:
  void Launch(std::size_t variant, const PoolCall& call, Stream stream) const;

  const Launcher launcher_;
};

}  // namespace onnxopt::cuda
