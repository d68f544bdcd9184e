// Kernels that cuDNN compiled for graphs of any shape: one kernel serves every graph with the same operations, whatever
// its sizes are, so that a new shape costs milliseconds instead of half a second.
#pragma once

#include <mutex>
#include <optional>
#include <string>

#include "cuda/convolution/graph.h"

namespace onnxopt::cuda {

// A kernel cache of cuDNN's, which takes graphs of many kinds. Thread-safe.
class CompiledKernels {
 public:
  // Those of a context, which live as long as the process. device: what kernels depend on of the GPU, as text.
  static CompiledKernels& Of(const cudnn::Api& api, Context context, const std::string& device);

  CompiledKernels(const cudnn::Api& api, std::string key) : api_(api), key_(std::move(key)) {}

  // Finalizes a plan whose graph is one of any shape, with a kernel that is there or that cuDNN compiles now. What it
  // compiles is kept in the user's cache. Whether cuDNN takes the plan.
  bool Finalize(const ConvolutionGraph& graph, cudnn::Descriptor* plan);

 private:
  cudnn::Descriptor Made(const ConvolutionGraph& graph) const;
  void Keep();

  const cudnn::Api& api_;
  const std::string key_;  // in the user's cache
  std::mutex mutex_;       // of all that follows
  std::optional<cudnn::Descriptor> kernels_;
  std::size_t bytes_ = 0;  // of their text, when they were kept
};

}  // namespace onnxopt::cuda
