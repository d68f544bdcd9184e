// Runs a convolution node on the GPU through cuDNN, on ONNX Runtime's stream.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "call/fused_kernel.h"
#include "cuda/convolution/pending.h"
#include "cuda/gemm/workspace.h"
#include "cuda/launch/allocator.h"
#include "cuda/launch/library.h"

namespace onnxopt::cuda {

// The plan of a node whose shapes are known is built with the kernel, others with their first run, which must not be
// captured. A convolution of a shape that was seen before neither synchronizes nor allocates. Thread-safe.
class ConvolutionCudaKernel final : public FusedKernel {
 public:
  // Throws Error if cuDNN is not there, does not start on this GPU, or has no plan for the node.
  ConvolutionCudaKernel(const Kernel& kernel, const Library& library, const OrtKernelInfo* info);

  void Compute(OrtKernelContext* context) const override;

 private:
  using Ready = std::shared_ptr<const ReadyConvolution>;
  struct Call;
  struct Recent {
    ConvolutionSizes sizes;
    bool tf32;
    std::int64_t alignment;
    Context context;
    Ready plan;  // or nullptr where it is still pending
  };

  void Prepare(const OrtKernelInfo* info);
  Ready PlanFor(const Call& call) const;
  static Recent Named(const ConvolutionProblem& problem, Context context, Ready plan);
  Ready Build(Context context, const ConvolutionProblem& problem) const;
  void Measure(const Call& call) const;
  void* ScratchOf(const Call& call, std::int64_t bytes) const;
  void FillFromNothing(const Call& call) const;
  std::string Gpu() const;     // its name
  std::string Device() const;  // what plans depend on of it

  const Convolution& convolution_;
  const Driver& driver_;
  Preference preference_ = Preference::kSoonest;  // shapes that come and go: a new one must not take long
  const cudnn::Api& api_;
  std::shared_ptr<const Allocator> allocator_;
  mutable std::mutex mutex_;                             // of all that follows
  mutable std::shared_ptr<PendingConvolution> pending_;  // of the shapes that the graph states, until the first run
  mutable std::list<Recent> recent_;                     // plans, the latest first, not more than kPlans
  mutable std::vector<Ready> captured_;                  // plans that CUDA graphs go on using
  mutable std::vector<std::shared_ptr<const Workspace>> held_;  // workspaces that this kernel has used
};

}  // namespace onnxopt::cuda
