// Runs mixtures of experts on the GPU: two products and adding up, behind finding the rows of all experts where there
// are many.
#pragma once

#include "call/experts.h"
#include "call/fused_kernel.h"
#include "cuda/launch/launcher.h"
#include "cuda/launch/scratch.h"
#include "kernel_file/experts.h"

namespace onnxopt::cuda {

// Launching does not synchronize, and allocates nothing but what lies between the launches, the first time on a stream:
// it is safe under CUDA graph capture. What is launched depends on the number of tokens, never on what they choose.
// Thread-safe.
class ExpertsCudaKernel final : public FusedKernel {
 public:
  ExpertsCudaKernel(const Kernel& kernel, const Library& library, const OrtKernelInfo* info)
      : FusedKernel(kernel), meaning_(kernel.meaning.As<Experts>()), launcher_(kernel, library), allocator_(info) {}

  void Compute(OrtKernelContext* context) const override;

 private:
  // A product's launch: blocks that share the columns of the weight, and its depth.
  struct Cut {
    std::uint64_t columns;
    std::uint64_t splits;
  };

  const ExpertsForm& FormOf(std::uint64_t tokens) const;
  Cut CutOf(std::size_t variant, bool second, std::uint64_t tiles, std::uint64_t most_splits) const;
  void Launch(std::size_t variant, std::uint64_t blocks, void* params, Stream stream) const;

  const Experts& meaning_;
  const Launcher launcher_;
  const Allocator allocator_;
};

}  // namespace onnxopt::cuda
