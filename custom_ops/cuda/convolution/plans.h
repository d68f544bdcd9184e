// Plans that are ready to run, shared by all kernels of a process.
#pragma once

#include <memory>
#include <mutex>

#include "cuda/convolution/epilogue.h"
#include "cuda/convolution/handles.h"
#include "cuda/convolution/plan.h"

namespace onnxopt::cuda {

// What of a convolution one plan computes: all of it, what cuDNN has kernels ready for, or the products alone.
enum class PlanScope : std::uint8_t { kAll, kReady, kBare };

// One convolution on the GPU of one context.
class ReadyConvolution {
 public:
  // scope: what the plan is of; what is left runs behind it. packed: the plan takes no parts of tensors, which are
  // copied before and behind it.
  ReadyConvolution(const ConvolutionProblem& problem, EnginePlan plan, PlanScope scope, bool packed)
      : problem_(problem), plan_(std::move(plan)), scope_(scope), packed_(packed) {}

  // Bytes.
  std::int64_t workspace() const;

  // Whether one plan of cuDNN's is all of it.
  bool is_one_plan() const { return scope_ == PlanScope::kAll && !packed_; }

  // The choice of its plan. Nothing where cuDNN does not tell.
  std::optional<EngineChoice> Choice() const { return plan_.Choice(); }

  // Enqueues it on the handle's stream; the caller has borrowed the handle. Thread-safe.
  void Run(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionPointers& at, void* workspace) const;

 private:
  // The result goes to `to`; at.y is where it is computed.
  void RunPlan(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionProblem& problem,
               const ConvolutionPointers& at, const PixelsAt& to, void* workspace) const;
  // Whether the plan adds the residual, not a pass behind it.
  bool plan_adds_residual() const;
  // Bytes, without those of copies.
  std::int64_t PlanWorkspace(const ConvolutionProblem& problem) const;
  void RunPacked(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionPointers& at, void* workspace) const;

  const ConvolutionProblem problem_;
  const EnginePlan plan_;
  const PlanScope scope_;
  const bool packed_;
  mutable std::mutex mutex_;
};

// What plans depend on of a GPU, as text: the driver's name of it, and all of it.
struct PlanDevice {
  std::string name;
  std::string all;
};

// The plan of a problem in a context, which is current; built where no kernel holds it yet. measured: the choice that
// `tune` made, or nullptr. A kernel that cuDNN compiles is kept in the user's cache. Throws Error where cuDNN has none.
//
// With kSoonest, no kernel is compiled for the shape: what is ready runs, with passes over its result, and channels of
// wider tensors, on which ready kernels are slow, are copied. The heuristic's choice is that for about this size, which
// an earlier process or `tune` may have asked for.
std::shared_ptr<const ReadyConvolution> ReadyFor(const cudnn::Api& api, Context context, const PlanDevice& device,
                                                 const ConvolutionProblem& problem, const EngineChoice* measured,
                                                 Preference preference);

// What the heuristic chooses for a problem, of kernels that are ready where there are some.
std::optional<EngineChoice> AskHeuristic(const cudnn::Api& api, cudnn::Handle handle,
                                         const ConvolutionProblem& problem);

// A convolution by a choice for WithoutCompiling() of it, as ReadyFor makes it with kSoonest. nullptr where cuDNN
// refuses it.
std::shared_ptr<const ReadyConvolution> ReadyBy(const cudnn::Api& api, Context context,
                                                const ConvolutionProblem& problem, const EngineChoice& choice);

}  // namespace onnxopt::cuda
