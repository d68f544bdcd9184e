#include "cuda/convolution/plan.h"

#include <algorithm>

namespace onnxopt::cuda {
namespace {

using cudnn::Descriptor;
using cudnn::Name;
using cudnn::Type;

constexpr std::size_t kMaxNotes = 16;
constexpr std::size_t kMaxKnobs = 64;
constexpr std::size_t kMaxCompiled = 4;

bool Has(const std::vector<int>& notes, int note) { return std::find(notes.begin(), notes.end(), note) != notes.end(); }

// Whether an engine keeps the promises of program/convolution.h.
bool Keeps(const Descriptor& engine, const ConvolutionProblem& problem) {
  const std::vector<int> notes = engine.Notes(Name::kEngineNumericalNotes, Type::kNumericalNote, kMaxNotes);
  if (Has(notes, cudnn::kReducesInLessPrecision) || Has(notes, cudnn::kIsNotDeterministic)) return false;
  const Convolution& convolution = problem.convolution;
  const bool exact = convolution.inputs[convolution.x] == Dtype::kFloat32 && !problem.tf32;
  return !exact || !(Has(notes, cudnn::kUsesTensorCores) || Has(notes, cudnn::kConvertsInputsDown));
}

using Graph = std::shared_ptr<const ConvolutionGraph>;

cudnn::Descriptor EngineOf(const Descriptor& config) {
  std::vector<Descriptor> engines = config.Descriptors(Name::kConfigEngine, cudnn::kEngine, 1);
  if (engines.empty()) throw cudnn::Refused("cuDNN offers a configuration without an engine");
  return std::move(engines[0]);
}

bool IsCompiled(const Descriptor& engine) {
  return Has(engine.Notes(Name::kEngineBehaviorNotes, Type::kBehaviorNote, kMaxNotes), cudnn::kCompilesAtRunTime);
}

// Nothing where cuDNN cannot build it, or it wants too much workspace.
std::optional<EnginePlan> MakePlan(const cudnn::Api& api, cudnn::Handle handle, const Graph& graph, Descriptor config,
                                   bool compiled) {
  Descriptor plan(api, cudnn::kExecutionPlan);
  plan.Set(Name::kPlanHandle, Type::kHandle, handle);
  plan.Set(Name::kPlanConfig, config);
  if (!plan.TryFinalize()) return std::nullopt;
  EnginePlan result(api, graph, std::move(config), std::move(plan), compiled);
  if (result.workspace() > static_cast<std::int64_t>(kMaxWorkspace)) return std::nullopt;
  return result;
}

struct Offer {
  Descriptor config;
  bool compiled;
};

// What the heuristic offers in a mode, best first, without what breaks a promise.
std::vector<Offer> Offers(const cudnn::Api& api, const ConvolutionGraph& graph, int mode,
                          const ConvolutionProblem& problem) {
  std::vector<Offer> offers;
  Descriptor heuristic(api, cudnn::kEngineHeuristic);
  heuristic.Set(Name::kHeuristicGraph, graph.graph);
  heuristic.Set(Name::kHeuristicMode, Type::kHeuristicMode, mode);
  if (!heuristic.TryFinalize()) return offers;
  const std::size_t count = heuristic.Count(Name::kHeuristicResults);
  for (Descriptor& config : heuristic.Descriptors(Name::kHeuristicResults, cudnn::kEngineConfig, count)) {
    const Descriptor engine = EngineOf(config);
    if (Keeps(engine, problem)) offers.push_back({std::move(config), IsCompiled(engine)});
  }
  return offers;
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
  add(Operand::kSlope, at.slope);
  add(Operand::kScale, at.scale);
  for (const Scalar& scalar : graph_->scalars) {
    ids.push_back(scalar.id);
    pointers.push_back(const_cast<float*>(&scalar.value));
  }
  Descriptor pack(*api_, cudnn::kVariantPack);
  pack.Set(Name::kPackIds, Type::kInt64, ids);
  pack.Set(Name::kPackPointers, Type::kPointer, pointers);
  pack.Set(Name::kPackWorkspace, Type::kPointer, workspace);
  pack.Finalize("cuDNN does not take the operands of a convolution");
  api_->Check(api_->cudnnBackendExecute(handle, plan_.raw(), pack.raw()), "the convolution did not start");
}

std::optional<EngineChoice> EnginePlan::Choice() const {
  if (!config_) return std::nullopt;
  try {
    EngineChoice choice;
    choice.engine = EngineOf(*config_).Number(Name::kEngineIndex);
    for (const Descriptor& knob : config_->Descriptors(Name::kConfigKnobChoices, cudnn::kKnobChoice, kMaxKnobs)) {
      const std::int64_t type = knob.Number(Name::kKnobType, Type::kKnobType);
      choice.knobs.emplace_back(type, knob.Number(Name::kKnobValue));
    }
    std::sort(choice.knobs.begin(), choice.knobs.end());
    return choice;
  } catch (const cudnn::Refused&) {
    return std::nullopt;
  }
}

std::optional<std::string> EnginePlan::Text() const {
  try {
    return plan_.Text(Name::kPlanJson);
  } catch (const cudnn::Refused&) {
    return std::nullopt;
  }
}

std::vector<EnginePlan> OfferedPlans(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionProblem& problem,
                                     std::size_t most, Preference preference) {
  std::vector<EnginePlan> plans;
  try {
    const auto graph = std::make_shared<const ConvolutionGraph>(MakeGraph(api, handle, problem));
    for (const int mode : {cudnn::kModeA, cudnn::kModeFallback}) {
      // What compiles only as a fallback is slower than a ready kernel and passes over its result.
      if (mode == cudnn::kModeFallback && problem.Compiles()) break;
      std::vector<Offer> offers = Offers(api, *graph, mode, problem);
      if (preference == Preference::kSoonest) {
        std::stable_partition(offers.begin(), offers.end(), [](const Offer& offer) { return !offer.compiled; });
      }
      std::size_t compiled = 0;
      for (Offer& offer : offers) {
        if (plans.size() >= most) break;
        if (offer.compiled && (preference == Preference::kReady || compiled == kMaxCompiled)) continue;
        std::optional<EnginePlan> plan = MakePlan(api, handle, graph, std::move(offer.config), offer.compiled);
        if (!plan) continue;
        if (offer.compiled) ++compiled;
        plans.push_back(std::move(*plan));
      }
      if (!plans.empty()) break;
    }
  } catch (const cudnn::Refused&) {
    return plans;  // what it built so far counts
  }
  return plans;
}

std::optional<EnginePlan> KeptPlan(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionProblem& problem,
                                   const std::string& text) {
  try {
    auto graph = std::make_shared<const ConvolutionGraph>(MakeGraph(api, handle, problem));
    Descriptor plan(api, cudnn::kExecutionPlan);
    plan.Set(Name::kPlanHandle, Type::kHandle, handle);
    plan.SetText(Name::kPlanJson, text);
    plan.Finalize("cuDNN does not take a plan that was kept");
    EnginePlan result(api, std::move(graph), std::nullopt, std::move(plan), true);
    if (result.workspace() > static_cast<std::int64_t>(kMaxWorkspace)) return std::nullopt;
    return result;
  } catch (const cudnn::Refused&) {
    return std::nullopt;
  }
}

std::optional<EnginePlan> RevivedPlan(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionProblem& problem,
                                      const EngineChoice& choice) {
  try {
    const auto graph = std::make_shared<const ConvolutionGraph>(MakeGraph(api, handle, problem));
    Descriptor engine(api, cudnn::kEngine);
    engine.Set(Name::kEngineGraph, graph->graph);
    engine.Set(Name::kEngineIndex, Type::kInt64, choice.engine);
    engine.Finalize("cuDNN does not take an engine");
    if (!Keeps(engine, problem)) return std::nullopt;
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
    return MakePlan(api, handle, graph, std::move(config), IsCompiled(engine));
  } catch (const cudnn::Refused&) {
    return std::nullopt;
  }
}

}  // namespace onnxopt::cuda
