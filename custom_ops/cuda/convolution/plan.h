// How cuDNN runs one convolution: the plan that was chosen for its graph.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/convolution/graph.h"
#include "kernel_file/measured/convolution_plans.h"

namespace onnxopt::cuda {

// Where the operands of one call lie.
struct ConvolutionPointers {
  const void* x;
  const void* w;
  const void* bias;      // or nullptr
  const void* residual;  // or nullptr
  void* y;
};

// One finalized plan. Execute is not thread-safe.
class EnginePlan {
 public:
  // graph: what the plan was made for, which is kept as long as the plan.
  EnginePlan(const cudnn::Api& api, std::shared_ptr<const ConvolutionGraph> graph, cudnn::Descriptor plan,
             EngineChoice choice, bool compiled, std::int64_t workspace)
      : api_(&api),
        graph_(std::move(graph)),
        plan_(std::move(plan)),
        choice_(std::move(choice)),
        compiled_(compiled),
        workspace_(workspace) {}

  // Enqueues the convolution on the handle's stream. workspace: so many bytes as the plan asks for.
  void Execute(cudnn::Handle handle, const ConvolutionPointers& at, void* workspace) const;

  const EngineChoice& choice() const { return choice_; }
  bool compiled_at_run_time() const { return compiled_; }
  std::int64_t workspace() const { return workspace_; }

 private:
  const cudnn::Api* api_;
  std::shared_ptr<const ConvolutionGraph> graph_;
  cudnn::Descriptor plan_;
  EngineChoice choice_;
  bool compiled_;
  std::int64_t workspace_;
};

// The plans that cuDNN's heuristic offers for a problem, best first, until there are `most`. Those that need more
// workspace than products have, that sum in less than float32, or that give other bits from run to run are left out.
// Empty where there is none. Offers are walked through finalization: cuDNN offers what it then cannot build.
std::vector<EnginePlan> OfferedPlans(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionProblem& problem,
                                     std::size_t most);

// The plan of a choice that was made before by the same cuDNN on the same GPU model. Nothing where cuDNN refuses it.
std::optional<EnginePlan> RevivedPlan(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionProblem& problem,
                                      const EngineChoice& choice);

}  // namespace onnxopt::cuda
