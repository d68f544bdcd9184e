// Runs depthwise convolutions on the GPU.
#pragma once

#include "call/fused_kernel.h"
#include "cuda/launch/launcher.h"
#include "program/depthwise.h"

namespace onnxopt::cuda {

// Launching neither synchronizes nor allocates: it is safe under CUDA graph capture. Thread-safe.
class DepthwiseCudaKernel final : public FusedKernel {
 public:
  DepthwiseCudaKernel(const Kernel& kernel, const Library& library)
      : FusedKernel(kernel), depthwise_(kernel.meaning.As<Depthwise>()), launcher_(kernel, library) {}

  void Compute(OrtKernelContext* context) const override;

 private:
  const Depthwise& depthwise_;
  const Launcher launcher_;
};

}  // namespace onnxopt::cuda
