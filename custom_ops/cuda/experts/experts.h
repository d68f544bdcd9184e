// Runs mixtures of experts on the GPU: two products and adding up, behind finding the rows of all experts where there
// are many.
#pragma once

#include "call/experts.h"
#include "call/fused_kernel.h"
#include "cuda/experts/products.h"
#include "cuda/launch/launcher.h"
#include "cuda/launch/scratch.h"
#include "experts/abi.h"
#include "kernel_file/variants.h"

namespace onnxopt::cuda {

// Under CUDA graph capture, launching does not synchronize, and what is launched depends on the number of tokens, never
// on what they choose. Elsewhere a call of experts with many rows waits until the GPU has found how many each has, and
// cuBLASLt multiplies. It takes no less memory than a capture of the same size would, so that this one allocates
// nothing. Thread-safe.
class ExpertsCudaKernel final : public FusedKernel {
 public:
  ExpertsCudaKernel(const Kernel& kernel, const Library& library, const OrtKernelInfo* info)
      : FusedKernel(kernel),
        meaning_(kernel.meaning.As<Experts>()),
        launcher_(kernel, library),
        allocator_(info),
        products_(meaning_, library.driver(), allocator_) {}

  void Compute(OrtKernelContext* context) const override;

 private:
  // A product's launch: blocks that share the columns of the weight, and its depth.
  struct Cut {
    std::uint64_t columns;
    std::uint64_t splits;
  };

  // Our own products of a call, and bytes of what lies between its launches.
  struct Work {
    const ExpertsForm& form;
    std::uint64_t tiles;
    Cut first;
    Cut second;
    std::uint64_t between;
    std::uint64_t sums;
    std::uint64_t ints;
    std::uint64_t bytes() const { return between + sums + ints; }
  };

  const ExpertsForm& FormOf(std::uint64_t tokens) const;
  std::uint64_t TileRows(const ExpertsForm& form) const;
  std::uint64_t MaxTiles(const ExpertsForm& form, std::uint64_t rows) const;
  Cut CutOf(std::size_t variant, bool second, std::uint64_t tiles, std::uint64_t max_splits) const;
  Work WorkOf(std::uint64_t tokens) const;
  bool IsForProducts(std::uint64_t rows) const;
  void RunWork(const Work& work, ExpertsParams params, char* memory, Stream stream) const;
  void RunProducts(const ExpertsCall& call, ExpertsParams params, std::uint64_t min_bytes, Stream stream,
                   const OrtKernelContext* context) const;
  void Launch(std::size_t variant, std::uint64_t blocks, ExpertsParams* params, Stream stream) const;
  void LaunchOver(std::size_t variant, std::uint64_t threads, ExpertsParams* params, Stream stream) const;

  const Experts& meaning_;
  const Launcher launcher_;
  const Allocator allocator_;
  const ExpertsProducts products_;
};

}  // namespace onnxopt::cuda
