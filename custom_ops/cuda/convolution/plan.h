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
  const void* slope;     // or nullptr
  void* y;
  const void* scale = nullptr;  // or nullptr
};

// Plans that want more workspace are not considered. Stems need it: engines for few channels copy their input.
constexpr std::size_t kMaxWorkspace = std::size_t{256} << 20U;

// One finalized plan. Execute is not thread-safe.
class EnginePlan {
 public:
  // graph, config: what the plan was made of, which are kept as long as the plan; a plan that was kept has no config.
  EnginePlan(const cudnn::Api& api, std::shared_ptr<const ConvolutionGraph> graph,
             std::optional<cudnn::Descriptor> config, cudnn::Descriptor plan, bool compiled)
      : api_(&api), graph_(std::move(graph)), config_(std::move(config)), plan_(std::move(plan)), compiled_(compiled) {}

  // Enqueues the convolution on the handle's stream. workspace: so many bytes as the plan asks for.
  void Execute(cudnn::Handle handle, const ConvolutionPointers& at, void* workspace) const;

  // Bytes. Throws cudnn::Refused where cuDNN does not tell.
  std::int64_t workspace() const { return plan_.Number(cudnn::Name::kPlanWorkspace); }

  // What has to be kept to make the plan again. Nothing where cuDNN does not tell.
  std::optional<EngineChoice> Choice() const;

  // The plan with its kernel, for KeptPlan of another process. Nothing where cuDNN does not tell.
  std::optional<std::string> Text() const;

  // Whether cuDNN compiled its kernel, which takes it half a second.
  bool compiled() const { return compiled_; }

 private:
  const cudnn::Api* api_;
  std::shared_ptr<const ConvolutionGraph> graph_;
  std::optional<cudnn::Descriptor> config_;
  cudnn::Descriptor plan_;
  bool compiled_;
};

// Which plans to make first.
enum class Preference : std::uint8_t {
  kFastest,  // as cuDNN's heuristic expects it
  kSoonest,  // those that cuDNN need not compile
  kReady,    // the same, and no others
};

// The plans that cuDNN's heuristic offers for a problem, best first, until there are `most`. Those that need too
// much workspace, that sum in less than float32, or that give other bits from run to run are left out,
// and so are further ones that cuDNN compiles where there are four of them. Empty where there is none. Offers are
// walked through finalization: cuDNN offers what it then cannot build.
std::vector<EnginePlan> OfferedPlans(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionProblem& problem,
                                     std::size_t most, Preference preference);

// The plan of another plan's Text(), which the same cuDNN wrote on the same GPU model. It takes milliseconds, also
// where compiling took a second. Nothing where cuDNN refuses it.
std::optional<EnginePlan> KeptPlan(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionProblem& problem,
                                   const std::string& text);

// The plan of a choice that was made before by the same cuDNN on the same GPU model. Nothing where cuDNN refuses it.
std::optional<EnginePlan> RevivedPlan(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionProblem& problem,
                                      const EngineChoice& choice);

}  // namespace onnxopt::cuda
