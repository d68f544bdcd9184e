// Runs convolutions of images on the CPU: row by row of the result, over ONNX Runtime's threads. A machine with a GPU
// needs it for its CPU sessions, as the name is registered there.
#pragma once

#include "call/fused_kernel.h"
#include "call/image_convolution.h"
#include "cpu/blocks/plan_cache.h"

namespace onnxopt {

class ImageConvolutionCpuKernel final : public FusedKernel {
 public:
  explicit ImageConvolutionCpuKernel(const Kernel& kernel);

  void Compute(OrtKernelContext* context) const override;

 private:
  const ImageConvolution& convolution_;
  const Program before_;  // with fused primitives, as after_
  const Program after_;
  const PlanCache before_plans_;
  const PlanCache after_plans_;
};

}  // namespace onnxopt
