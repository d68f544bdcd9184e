// Plans that are ready to run, shared by all kernels of a process.
#pragma once

#include <memory>
#include <mutex>

#include "cuda/convolution/handles.h"
#include "cuda/convolution/plan.h"

namespace onnxopt::cuda {

// One convolution on the GPU of one context.
class ReadyConvolution {
 public:
  // bare: the plan is of the convolution alone, and the epilogue runs behind it. packed: the plan takes no parts of
  // tensors, which are copied before and behind it.
  ReadyConvolution(const ConvolutionProblem& problem, EnginePlan plan, bool bare, bool packed)
      : problem_(problem), plan_(std::move(plan)), bare_(bare), packed_(packed) {}

  // Bytes.
  std::int64_t workspace() const;

  // Whether one plan of cuDNN's is all of it.
  bool is_one_plan() const { return !bare_ && !packed_; }

  // The choice of its plan. Nothing where cuDNN does not tell.
  std::optional<EngineChoice> Choice() const { return plan_.Choice(); }

  // Enqueues it on the handle's stream; the caller has borrowed the handle. Thread-safe.
  void Run(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionPointers& at, void* workspace) const;

 private:
  void RunPlan(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionProblem& problem,
               const ConvolutionPointers& at, void* workspace) const;
  // Bytes, without those of copies.
  std::int64_t PlanWorkspace(const ConvolutionProblem& problem) const;
  void RunPacked(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionPointers& at, void* workspace) const;

  const ConvolutionProblem problem_;
  const EnginePlan plan_;
  const bool bare_;
  const bool packed_;
  mutable std::mutex mutex_;
};

// The kernels of any shape that a problem's plans should use: where shapes come and go, and cuDNN would compile a kernel
// for each. Otherwise nullptr. device: as below.
CompiledKernels* KernelsOf(const cudnn::Api& api, Context context, const std::string& device,
                           const ConvolutionProblem& problem, Preference preference);

// The plan of a problem in a context, which is current; built where no kernel holds it yet. device: what a plan depends
// on of the GPU, as text. measured: the choice that `tune` made, or nullptr. A kernel that cuDNN compiles is kept in
// the user's cache. Throws Error where cuDNN has none.
std::shared_ptr<const ReadyConvolution> ReadyFor(const cudnn::Api& api, Context context, const std::string& device,
                                                 const ConvolutionProblem& problem, const EngineChoice* measured,
                                                 Preference preference);

}  // namespace onnxopt::cuda
