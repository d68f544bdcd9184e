#include "cuda/convolution/plans.h"

#include <algorithm>
#include <map>

#include "support/math.h"
#include "support/user_cache.h"

namespace onnxopt::cuda {
namespace {

using Key = std::pair<Context, std::string>;

constexpr std::int64_t kAligned = 256;  // bytes, of every part of a workspace

// Bytes of copies of the operands that are parts of tensors, 0 where one is none.
struct Copies {
  Copies(const ConvolutionProblem& problem, bool of_residual) {
    const ConvolutionSizes& s = problem.sizes;
    const auto size = static_cast<std::int64_t>(Size(problem.convolution.dtype()));
    const std::int64_t result = RoundUp(s.output_pixels() * s.k * size, kAligned);
    if (s.x_pixel != s.c) x = RoundUp(s.input_pixels() * s.c * size, kAligned);
    if (of_residual && problem.convolution.residual && s.residual_pixel != s.k) residual = result;
    if (s.y_pixel != s.k) y = result;
  }

  std::int64_t x = 0;
  std::int64_t residual = 0;
  std::int64_t y = 0;
};

struct Entry {
  std::mutex building;
  std::weak_ptr<const ReadyConvolution> plan;
};

std::shared_ptr<Entry> EntryOf(const Key& key) {
  static std::mutex mutex;
  static auto* const entries = new std::map<Key, std::shared_ptr<Entry>>;  // outlives every kernel
  const std::lock_guard<std::mutex> lock(mutex);
  // Shapes come and go with dynamic inputs: entries whose plan nobody holds are dropped now and then.
  constexpr std::size_t kMany = 4096;
  if (entries->size() > kMany) {
    for (auto at = entries->begin(); at != entries->end();) {
      at = at->second.use_count() == 1 && at->second->plan.expired() ? entries->erase(at) : std::next(at);
    }
  }
  std::shared_ptr<Entry>& entry = (*entries)[key];
  if (entry == nullptr) entry = std::make_shared<Entry>();
  return entry;
}

// Plans whose kernels cuDNN compiled, kept for later processes.
const UserCache& Kept() {
  static const auto* const kept = new UserCache("plans", "onnxopt cuDNN plan 1");
  return *kept;
}

// What a plan is kept by. A measured choice has plans of its own.
std::string KeyOf(const cudnn::Api& api, const std::string& device, const ConvolutionProblem& problem,
                  const EngineChoice* measured) {
  std::string key = device + "; cuDNN " + std::to_string(api.cudnnGetVersion()) + " of CUDA " +
                    std::to_string(api.cudnnGetCudartVersion()) + "; " + problem.Describe();
  if (measured == nullptr) return key;
  key += "; engine " + std::to_string(measured->engine);
  for (const auto& [type, value] : measured->knobs) key += " " + std::to_string(type) + "=" + std::to_string(value);
  return key;
}

// The measured plan, or the first that the heuristic offers. Nothing where there is none.
std::optional<EnginePlan> Chosen(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionProblem& problem,
                                 const EngineChoice* measured, Preference preference) {
  if (measured != nullptr) {
    std::optional<EnginePlan> plan = RevivedPlan(api, handle, problem, *measured);
    if (plan) return plan;
  }
  std::vector<EnginePlan> plans = OfferedPlans(api, handle, problem, 1, preference);
  if (plans.empty()) return std::nullopt;
  return std::move(plans[0]);
}

// The same, from the user's cache where it has it, and kept there where cuDNN compiled it.
std::optional<EnginePlan> ChosenOrKept(const cudnn::Api& api, cudnn::Handle handle, const std::string& device,
                                       const ConvolutionProblem& problem, const EngineChoice* measured,
                                       Preference preference) {
  const std::string key = KeyOf(api, device, problem, measured);
  if (const std::optional<std::string> text = Kept().Read(key)) {
    std::optional<EnginePlan> plan = KeptPlan(api, handle, problem, *text);
    if (plan) return plan;
  }
  std::optional<EnginePlan> plan = Chosen(api, handle, problem, measured, preference);
  if (plan && plan->compiled()) {
    if (const std::optional<std::string> text = plan->Text()) Kept().Write(key, *text);
  }
  return plan;
}

// Whether a kernel that cuDNN would compile for the shape is not waited for.
bool DoesWithout(const ConvolutionProblem& problem, const EngineChoice* measured, Preference preference) {
  return preference == Preference::kSoonest && problem.Compiles() && measured == nullptr && !problem.convolution.codes;
}

// The heuristic's choice for problems of about this size. It depends on the problem alone, not on those that came
// before.
std::optional<EngineChoice> ChoiceForSize(const cudnn::Api& api, cudnn::Handle handle, const std::string& gpu,
                                          const ConvolutionProblem& problem) {
  const std::optional<ConvolutionProblem> like = problem.OfPixels(problem.PowerOfPixels());
  if (!like) return std::nullopt;
  ConvolutionPlans& entries = ConvolutionPlans::Get();
  const std::string text = like->Describe();
  const std::optional<ExpectedPlan> expected = entries.FindExpected(gpu, api.cudnnGetVersion(), text);
  if (expected) return expected->choice;
  std::optional<EngineChoice> choice = AskHeuristic(api, handle, *like);
  if (choice) entries.AddExpected(gpu, api.cudnnGetVersion(), {{text, {*choice, false}}});
  return choice;
}

std::shared_ptr<const ReadyConvolution> Build(const cudnn::Api& api, cudnn::Handle handle, const PlanDevice& device,
                                              const ConvolutionProblem& problem, const EngineChoice* measured,
                                              Preference preference) {
  const bool does_without = DoesWithout(problem, measured, preference);
  for (const bool packed : {false, true}) {
    if (packed && !problem.HasParts()) break;
    if (!packed && problem.HasParts() && does_without) continue;  // ready kernels are slow there
    const ConvolutionProblem of = packed ? problem.Packed() : problem;
    const ConvolutionProblem planned = does_without ? of.WithoutCompiling() : of;
    const EngineChoice* const choice = packed ? nullptr : measured;
    std::optional<EnginePlan> plan;
    if (preference == Preference::kSoonest && choice == nullptr) {
      const std::optional<EngineChoice> of_size = ChoiceForSize(api, handle, device.name, planned);
      if (of_size) plan = RevivedPlan(api, handle, planned, *of_size);
    }
    if (!plan) plan = ChosenOrKept(api, handle, device.all, planned, choice, preference);
    if (plan) {
      const PlanScope scope = does_without ? PlanScope::kReady : PlanScope::kAll;
      return std::make_shared<const ReadyConvolution>(problem, std::move(*plan), scope, packed);
    }
    if (problem.convolution.codes) break;  // what would follow a bare one computes no codes
    plan = ChosenOrKept(api, handle, device.all, of.Bare(), nullptr, preference);
    if (plan) {
      return std::make_shared<const ReadyConvolution>(problem, std::move(*plan), PlanScope::kBare, packed);
    }
  }
  throw Error("cuDNN " + std::to_string(api.cudnnGetVersion()) + " has no plan for the convolution " +
              problem.Describe() +
              "; set ONNXOPT_DISABLE=1 to run without onnxopt's kernels, and report this convolution");
}

}  // namespace

void ReadyConvolution::Run(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionPointers& at,
                           void* workspace) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (packed_) return RunPacked(api, handle, at, workspace);
  RunPlan(api, handle, problem_, at, {at.y, problem_.sizes.y_pixel}, workspace);
}

void ReadyConvolution::RunPlan(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionProblem& problem,
                               const ConvolutionPointers& at, const PixelsAt& to, void* workspace) const {
  if (scope_ == PlanScope::kAll) {
    plan_.Execute(handle, at, workspace);
    return CopyResult(api, handle, problem, at.y, to);
  }
  const bool ready = scope_ == PlanScope::kReady && !problem.convolution.transposed;
  ConvolutionPointers in_plan{at.x, at.w, nullptr, nullptr, nullptr, at.y};
  ConvolutionPointers behind = at;
  if (ready) std::swap(in_plan.bias, behind.bias);
  if (plan_adds_residual()) std::swap(in_plan.residual, behind.residual);
  plan_.Execute(handle, in_plan, workspace);
  RunEpilogue(api, handle, problem, behind, to, workspace);
}

void ReadyConvolution::RunPacked(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionPointers& at,
                                 void* workspace) const {
  const Copies copies(problem_, plan_adds_residual());
  const ConvolutionSizes& s = problem_.sizes;
  const Dtype dtype = problem_.convolution.dtype();
  ConvolutionProblem problem = problem_.Packed();
  if (copies.residual == 0) problem.sizes.residual_pixel = s.residual_pixel;
  char* const free = static_cast<char*>(workspace) + RoundUp(PlanWorkspace(problem), kAligned);
  ConvolutionPointers packed = at;
  if (copies.x > 0) {
    CopyPixels(api, handle, dtype, {s.n, s.d * s.h, s.w, s.c}, at.x, s.x_pixel, free, s.c);
    packed.x = free;
  }
  const Pixels result{s.n, s.output_d * s.output_h, s.output_w, s.k};
  if (copies.residual > 0) {
    CopyPixels(api, handle, dtype, result, at.residual, s.residual_pixel, free + copies.x, s.k);
    packed.residual = free + copies.x;
  }
  if (copies.y > 0) packed.y = free + copies.x + copies.residual;
  RunPlan(api, handle, problem, packed, {at.y, s.y_pixel}, workspace);
}

bool ReadyConvolution::plan_adds_residual() const {
  const Convolution& convolution = problem_.convolution;
  const bool ready = scope_ == PlanScope::kReady && !convolution.transposed && !convolution.residual_last;
  return scope_ == PlanScope::kAll || ready;
}

std::int64_t ReadyConvolution::workspace() const {
  if (!packed_) return PlanWorkspace(problem_);
  const Copies copies(problem_, plan_adds_residual());
  return RoundUp(PlanWorkspace(problem_.Packed()), kAligned) + copies.x + copies.residual + copies.y;
}

std::int64_t ReadyConvolution::PlanWorkspace(const ConvolutionProblem& problem) const {
  return std::max(plan_.workspace(), scope_ == PlanScope::kAll ? 0 : EpilogueScratch(problem));
}

std::shared_ptr<const ReadyConvolution> ReadyFor(const cudnn::Api& api, Context context, const PlanDevice& device,
                                                 const ConvolutionProblem& problem, const EngineChoice* measured,
                                                 Preference preference) {
  std::string key = KeyOf(api, device.all, problem, measured) + problem.Numbers();
  if (DoesWithout(problem, measured, preference)) key += "; nothing compiled";
  const std::shared_ptr<Entry> entry = EntryOf({context, key});
  const std::lock_guard<std::mutex> lock(entry->building);
  if (auto plan = entry->plan.lock()) return plan;
  BuilderHandle& builder = BuilderOf(api, context);
  const std::lock_guard<std::mutex> builds(builder.mutex);
  auto plan = Build(api, builder.raw, device, problem, measured, preference);
  entry->plan = plan;
  return plan;
}

std::optional<EngineChoice> AskHeuristic(const cudnn::Api& api, cudnn::Handle handle,
                                         const ConvolutionProblem& problem) {
  const std::vector<EnginePlan> plans = OfferedPlans(api, handle, problem, 1, Preference::kSoonest);
  return plans.empty() ? std::nullopt : plans[0].Choice();
}

std::shared_ptr<const ReadyConvolution> ReadyBy(const cudnn::Api& api, Context context,
                                                const ConvolutionProblem& problem, const EngineChoice& choice) {
  BuilderHandle& builder = BuilderOf(api, context);
  const std::lock_guard<std::mutex> builds(builder.mutex);
  std::optional<EnginePlan> plan = RevivedPlan(api, builder.raw, problem.WithoutCompiling(), choice);
  if (!plan) return nullptr;
  const bool compiles = problem.Compiles();
  const PlanScope scope = compiles ? PlanScope::kReady : PlanScope::kAll;
  return std::make_shared<const ReadyConvolution>(problem, std::move(*plan), scope, compiles && problem.HasParts());
}

}  // namespace onnxopt::cuda
