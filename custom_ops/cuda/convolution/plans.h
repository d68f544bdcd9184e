// Plans that are ready to run, shared by all kernels of a process.
#pragma once

#include <memory>
#include <mutex>

#include "cuda/convolution/handles.h"
#include "cuda/convolution/plan.h"

namespace onnxopt::cuda {

// What of a convolution one plan computes: all of it, what cuDNN has kernels ready for, or the products alone.
enum class PlanScope : std::uint8_t { kAll, kReady, kBare };

// One convolution on the GPU of one context.
class ReadyConvolution {
 public:
  // scope: what the plan is of; what is left runs behind it. packed: the plan takes no parts of tensors, which are
  // copied before and behind it. of_any_shape: whether its kernel is.
  ReadyConvolution(const ConvolutionProblem& problem, EnginePlan plan, PlanScope scope, bool packed, bool of_any_shape)
      : problem_(problem), plan_(std::move(plan)), scope_(scope), packed_(packed), of_any_shape_(of_any_shape) {}

  // Bytes.
  std::int64_t workspace() const;

  // Whether one plan of cuDNN's is all of it.
  bool is_one_plan() const { return scope_ == PlanScope::kAll && !packed_; }

  // Whether its choice may be one for a problem that differs in sizes alone.
  bool is_of(const ConvolutionProblem& problem) const {
    if (packed_ || problem.HasParts() != problem_.HasParts()) return false;
    return problem.Compiles() ? of_any_shape_ || scope_ == PlanScope::kReady : scope_ == PlanScope::kAll;
  }

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
  const PlanScope scope_;
  const bool packed_;
  const bool of_any_shape_;
  mutable std::mutex mutex_;
};

// Choices that were made before, or nullptr: by `tune` for this problem, and for one of about the same size.
struct KnownChoices {
  const EngineChoice* measured;
  const EngineChoice* near;
};

// The plan of a problem in a context, which is current; built where no kernel holds it yet. device: what a plan depends
// on of the GPU, as text. A kernel that cuDNN compiles is kept in the user's cache. Throws Error where cuDNN has none.
//
// With kSoonest, a kernel that cuDNN would compile for the shape is not waited for: what is ready runs, with passes
// over its result, and channels of wider tensors, on which that is slow, get a kernel that cuDNN compiles for all
// shapes. float16, 8x80x80 128 -> 128 3x3 with SiLU, us: compiled 34, ready 36 and a pass of 7, of any shape 57;
// 8x160x160 32 -> 32 that reads and writes channels 44, 73 and a pass, 44 (one H200, cuDNN 9.19).
std::shared_ptr<const ReadyConvolution> ReadyFor(const cudnn::Api& api, Context context, const std::string& device,
                                                 const ConvolutionProblem& problem, const KnownChoices& known,
                                                 Preference preference);

}  // namespace onnxopt::cuda
