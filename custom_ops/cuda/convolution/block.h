// Runs a block of convolutions on the GPU, through cuDNN or by entry points of ours, on ONNX Runtime's stream.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "call/block.h"
#include "call/fused_kernel.h"
#include "cuda/convolution/cudnn.h"
#include "cuda/convolution/runner.h"
#include "cuda/launch/library.h"
#include "cuda/own_convolution/dense.h"

namespace onnxopt::cuda {

// What one convolution hands to the next lies in a buffer of the stream, which all blocks share. Thread-safe.
class BlockCudaKernel final : public FusedKernel {
 public:
  // Throws Error if cuDNN is not there, does not start on this GPU, or has no plan for a convolution.
  BlockCudaKernel(const Kernel& kernel, const Library& library, const OrtKernelInfo* info);

  void Compute(OrtKernelContext* context) const override;

  static std::optional<std::string> Obstacle() { return cudnn::Obstacle(); }
  static bool RunsWithoutFatbin(const Kernel& kernel) { return kernel.variants.empty(); }

 private:
  void Prepare(const OrtKernelInfo* info);
  bool TakesOver(std::size_t step, const ConvolutionSizes& sizes) const;

  const Block& block_;
  const Driver& driver_;
  const cudnn::Api& api_;
  const Allocator allocator_;
  std::deque<ConvolutionRunner> runners_;               // of the steps
  const std::unique_ptr<const DenseConvolutions> own_;  // or nullptr
};

}  // namespace onnxopt::cuda
