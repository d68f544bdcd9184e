#include "cuda/convolution/plan.h"

#include <algorithm>

#include "cuda/gemm/workspace.h"

namespace onnxopt::cuda {
namespace {

using cudnn::Descriptor;
using cudnn::Name;
using cudnn::Type;

constexpr std::size_t kMostNotes = 16;

bool Has(const std::vector<int>& notes, int note) { return std::find(notes.begin(), notes.end(), note) != notes.end(); }

// Whether an engine keeps the promises of program/convolution.h.
bool Keeps(const Descriptor& engine, const ConvolutionProblem& problem) {
  const std::vector<int> notes = engine.Notes(Name::kEngineNumericalNotes, Type::kNumericalNote, kMostNotes);
  if (Has(notes, cudnn::kReducesInLessPrecision) || Has(notes, cudnn::kIsNotDeterministic)) return false;
  const bool exact = problem.convolution.dtype == Dtype::kFloat32 && !problem.tf32;
  return !exact || !(Has(notes, cudnn::kUsesTensorCores) || Has(notes, cudnn::kConvertsInputsDown));
}

EngineChoice ChoiceOf(const Descriptor& engine, const Descriptor& config) {
  EngineChoice choice;
  choice.engine = engine.Number(Name::kEngineIndex);
  for (const Descriptor& knob : config.Descriptors(Name::kConfigKnobChoices, cudnn::kKnobChoice)) {
    const std::int64_t type = knob.Number(Name::kKnobType, Type::kKnobType);
    choice.knobs.emplace_back(type, knob.Number(Name::kKnobValue));
  }
  std::sort(choice.knobs.begin(), choice.knobs.end());
  return choice;
}

using Graph = std::shared_ptr<const ConvolutionGraph>;

std::optional<EnginePlan> MakePlan(const cudnn::Api& api, cudnn::Handle handle, const Graph& graph,
                                   const Descriptor& config, const ConvolutionProblem& problem) {
  std::vector<Descriptor> engines = config.Descriptors(Name::kConfigEngine, cudnn::kEngine);
  if (engines.empty() || !Keeps(engines[0], problem)) return std::nullopt;
  Descriptor plan(api, cudnn::kExecutionPlan);
  plan.Set(Name::kPlanHandle, Type::kHandle, handle);
  plan.Set(Name::kPlanConfig, config);
  if (!plan.TryFinalize()) return std::nullopt;
  const std::int64_t workspace = plan.Number(Name::kPlanWorkspace);
  if (workspace > static_cast<std::int64_t>(kWorkspaceBytes)) return std::nullopt;
  const std::vector<int> notes = engines[0].Notes(Name::kEngineBehaviorNotes, Type::kBehaviorNote, kMostNotes);
  return EnginePlan(api, graph, std::move(plan), ChoiceOf(engines[0], config), Has(notes, cudnn::kCompilesAtRunTime),
                    workspace);
}

std::vector<Descriptor> Configurations(const cudnn::Api& api, const ConvolutionGraph& graph, int mode) {
  Descriptor heuristic(api, cudnn::kEngineHeuristic);
  heuristic.Set(Name::kHeuristicGraph, graph.graph);
  heuristic.Set(Name::kHeuristicMode, Type::kHeuristicMode, mode);
  if (!heuristic.TryFinalize()) return {};
  return heuristic.Descriptors(Name::kHeuristicResults, cudnn::kEngineConfig);
}

}  // namespace

void EnginePlan::Execute(cudnn::Handle handle, const ConvolutionPointers& at, void* workspace) const {
  std::vector<std::int64_t> ids;
  std::vector<void*> pointers;
  const auto add = [&](Operand operand, const void* data) {
    if (data == nullptr) return;
    ids.push_back(static_cast<std::int64_t>(operand));
    pointers.push_back(const_cast<void*>(data));  // cuDNN's one type for what is read and what is written
  };
  add(Operand::kX, at.x);
  add(Operand::kW, at.w);
  add(Operand::kY, at.y);
  add(Operand::kBias, at.bias);
  add(Operand::kResidual, at.residual);
  Descriptor pack(*api_, cudnn::kVariantPack);
  pack.Set(Name::kPackIds, Type::kInt64, ids);
  pack.Set(Name::kPackPointers, Type::kPointer, pointers);
  pack.Set(Name::kPackWorkspace, Type::kPointer, workspace);
  pack.Finalize("cuDNN does not take the operands of a convolution");
  api_->Check(api_->cudnnBackendExecute(handle, plan_.raw(), pack.raw()), "the convolution did not start");
}

std::vector<EnginePlan> OfferedPlans(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionProblem& problem,
                                     std::size_t most) {
  std::vector<EnginePlan> plans;
  try {
    const auto graph = std::make_shared<const ConvolutionGraph>(MakeGraph(api, handle, problem));
    for (const int mode : {cudnn::kModeA, cudnn::kModeFallback}) {
      for (const Descriptor& config : Configurations(api, *graph, mode)) {
        if (plans.size() >= most) return plans;
        std::optional<EnginePlan> plan = MakePlan(api, handle, graph, config, problem);
        if (!plan) continue;
        const auto same = [&](const EnginePlan& other) { return other.choice() == plan->choice(); };
        if (std::none_of(plans.begin(), plans.end(), same)) plans.push_back(std::move(*plan));
      }
    }
  } catch (const cudnn::Refused&) {
    // What it built so far counts.
  }
  return plans;
}

std::optional<EnginePlan> RevivedPlan(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionProblem& problem,
                                      const EngineChoice& choice) {
  try {
    const auto graph = std::make_shared<const ConvolutionGraph>(MakeGraph(api, handle, problem));
    Descriptor engine(api, cudnn::kEngine);
    engine.Set(Name::kEngineGraph, graph->graph);
    engine.Set(Name::kEngineIndex, Type::kInt64, choice.engine);
    engine.Finalize("cuDNN does not take an engine");
    std::vector<Descriptor> knobs;
    std::vector<cudnn::BackendDescriptor> raw;
    for (const auto& [type, value] : choice.knobs) {
      Descriptor& knob = knobs.emplace_back(api, cudnn::kKnobChoice);
      knob.Set(Name::kKnobType, Type::kKnobType, static_cast<int>(type));
      knob.Set(Name::kKnobValue, Type::kInt64, value);
      knob.Finalize("cuDNN does not take a knob");
      raw.push_back(knob.raw());
    }
    Descriptor config(api, cudnn::kEngineConfig);
    config.Set(Name::kConfigEngine, engine);
    if (!raw.empty()) config.Set(Name::kConfigKnobChoices, Type::kDescriptor, raw);
    config.Finalize("cuDNN does not take a configuration");
    return MakePlan(api, handle, graph, config, problem);
  } catch (const cudnn::Refused&) {
    return std::nullopt;
  }
}

}  // namespace onnxopt::cuda
