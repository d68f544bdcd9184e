// Runs depthwise convolutions on the GPU.
#pragma once

#include <functional>
#include <vector>

#include "call/depthwise.h"
#include "call/fused_kernel.h"
#include "cuda/depthwise_variant.h"
#include "cuda/launch/launcher.h"
#include "program/generated/depthwise.h"

namespace onnxopt::cuda {

// Launches the entry point for a call that is not empty. variants: the convolution's, which are those of the launcher's
// kernel from `first` on. prepare: changes what is handed to a launch. Throws Error where no entry point fits.
void RunDepthwise(const Depthwise& depthwise, const std::vector<Variant>& variants, std::size_t first,
                  const Launcher& launcher, const DepthwiseCall& call, Stream stream,
                  const std::function<void(DepthwiseLaunch*)>& prepare);

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
