// Convolutions of one node: their plans for the shapes that come, and what runs them.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cuda/convolution/handles.h"
#include "cuda/convolution/other_sizes.h"
#include "cuda/convolution/pending.h"
#include "cuda/launch/driver.h"
#include "cuda/launch/scratch.h"

namespace onnxopt::cuda {

// One call. The context is current. problem.alignment is set by the runner.
struct ConvolutionCall {
  ConvolutionProblem problem;
  ConvolutionPointers at;
  Stream stream;
  Context context;
  bool capturing;
  CallScratch* scratch;  // that convolutions of the call work in
};

// Throws Error where cuDNN, or what it needs, is not there.
const cudnn::Api& FindCudnn();

// The plan of a shape that is known ahead is built with the kernel, others with their first run, which must not be
// captured and must not take long. A shape that was seen before does not synchronize. Thread-safe.
class ConvolutionRunner {
 public:
  using Ready = std::shared_ptr<const ReadyConvolution>;

  // preference: for shapes that come and go, of which a new one must not take long as a rule.
  ConvolutionRunner(const Driver& driver, const cudnn::Api& api, Preference preference = Preference::kSoonest);

  // Builds the plan of a problem that will come. alone: no other will. Whether float32 may be rounded to TF32 shows at
  // the first run.
  void Prepare(ConvolutionProblem problem, bool alone);

  // The plan for a call whose input has elements; sets the call's alignment.
  Ready PlanFor(ConvolutionCall* call) const;

  // The result over an input without elements, which cuDNN does not take: a sum over nothing is zero.
  void FillFromNothing(const ConvolutionCall& call) const;

 private:
  struct Recent {
    ConvolutionSizes sizes;
    bool tf32;
    std::int64_t alignment;
    Context context;
    Ready plan;                                   // or nullptr where it is still pending
    bool measured;                                // whether a first run has measured it, or need not
    bool stated;                                  // whether it was known ahead
    std::shared_ptr<PendingConvolution> pending;  // until the first run
  };

  static Recent Named(const ConvolutionProblem& problem, Context context, Ready plan);
  Ready Build(Context context, const ConvolutionProblem& problem, Preference preference) const;
  void LoadOnce(const ConvolutionCall& call) const;
  void Measure(const ConvolutionCall& call) const;
  void MeasureFirstRun(const ConvolutionCall& call, Recent* entry) const;
  void MeasureSize(const ConvolutionCall& call, Recent* entry) const;
  TimedOn On(const ConvolutionCall& call, const std::string& gpu) const;
  std::vector<EnginePlan> Offered(const ConvolutionCall& call, std::size_t most, Preference preference) const;
  void MeasureBeside(const ConvolutionCall& call, const ReadyConvolution& first) const;
  PlanDevice Device() const;

  const Driver& driver_;
  const cudnn::Api& api_;
  Preference preference_;
  mutable std::mutex mutex_;             // of all that follows
  mutable bool loaded_ = false;          // kernels of other sizes
  mutable std::list<Recent> recent_;     // plans, the latest first, not more than kPlans
  mutable std::vector<Ready> captured_;  // plans that CUDA graphs go on using
};

}  // namespace onnxopt::cuda
