// Runs a rowwise node on the GPU: picks a variant for the shapes at hand and launches it on ONNX Runtime's stream.
#pragma once

#include "call/programs/rowwise.h"
#include "cuda/launch/launcher.h"
#include "cuda/launch/scratch.h"
#include "cuda/programs/rowwise_variant.h"

namespace onnxopt::cuda {

// Launching does not synchronize, and allocates nothing but the partial results of split rows, the first time on a
// stream: it is safe under CUDA graph capture. Thread-safe.
class RowwiseCudaKernel final : public RowKernel {
 public:
  // Loads every variant into the current context, if there is one. Throws Error if one does not load.
  RowwiseCudaKernel(const Kernel& kernel, const Library& library, const OrtKernelInfo* info)
      : RowKernel(kernel, kernel.meaning.As<RowProgram>()), launcher_(kernel, library), allocator_(info) {}

 private:
  void Run(const Grid& grid, OrtKernelContext* context) const override;

  void RunSplit(std::size_t chosen, const Grid& grid, const Gpu& gpu, Stream stream, CallScratch* scratch) const;

  const Launcher launcher_;
  const Allocator allocator_;
};

}  // namespace onnxopt::cuda
