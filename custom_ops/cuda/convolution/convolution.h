// Runs a convolution node on the GPU, through cuDNN or by an entry point of ours, on ONNX Runtime's stream.
#pragma once

#include <memory>

#include "call/fused_kernel.h"
#include "cuda/convolution/cudnn.h"
#include "cuda/convolution/runner.h"
#include "cuda/launch/library.h"
#include "cuda/own_convolution/choose.h"

namespace onnxopt::cuda {

// Thread-safe.
class ConvolutionCudaKernel final : public FusedKernel {
 public:
  // Throws Error if cuDNN is not there, does not start on this GPU, or has no plan for the node.
  ConvolutionCudaKernel(const Kernel& kernel, const Library& library, const OrtKernelInfo* info);

  void Compute(OrtKernelContext* context) const override;

  static std::optional<std::string> Obstacle() { return cudnn::Obstacle(); }
  static bool RunsWithoutFatbin(const Kernel& kernel) {
    return kernel.variants.empty() && !kernel.meaning.As<Convolution>().needs_own_kernel();
  }
  static int FirstMajor(const Kernel& kernel) {
    constexpr int kFirstCompiledMajor = 8;  // compute capability: cuDNN compiles all convolutions of codes
    return kernel.meaning.As<Convolution>().codes.has_value() ? kFirstCompiledMajor : 0;
  }

 private:
  void Prepare(const OrtKernelInfo* info);
  bool TakesOver(const ConvolutionSizes& sizes) const;

  const Convolution& convolution_;
  const Driver& driver_;
  const cudnn::Api& api_;
  const Allocator allocator_;
  ConvolutionRunner runner_;
  const std::unique_ptr<const OwnConvolution> own_;  // or nullptr
};

}  // namespace onnxopt::cuda
