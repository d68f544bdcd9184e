#include "cuda/convolution/plans.h"

#include <algorithm>
#include <map>

#include "cuda/convolution/epilogue.h"

namespace onnxopt::cuda {
namespace {

using Key = std::pair<Context, std::string>;

struct Entry {
  std::mutex building;
  std::weak_ptr<const ReadyConvolution> plan;
};

std::shared_ptr<Entry> EntryOf(const Key& key) {
  static std::mutex mutex;
  static auto* const known = new std::map<Key, std::shared_ptr<Entry>>;  // outlives every kernel
  const std::lock_guard<std::mutex> lock(mutex);
  // Shapes come and go with dynamic inputs: entries whose plan nobody holds are dropped now and then.
  constexpr std::size_t kMany = 4096;
  if (known->size() > kMany) {
    for (auto at = known->begin(); at != known->end();) {
      at = at->second.use_count() == 1 && at->second->plan.expired() ? known->erase(at) : std::next(at);
    }
  }
  std::shared_ptr<Entry>& entry = (*known)[key];
  if (entry == nullptr) entry = std::make_shared<Entry>();
  return entry;
}

std::shared_ptr<const ReadyConvolution> Build(const cudnn::Api& api, cudnn::Handle handle,
                                              const ConvolutionProblem& problem, const EngineChoice* measured,
                                              Preference preference) {
  if (measured != nullptr) {
    std::optional<EnginePlan> plan = RevivedPlan(api, handle, problem, *measured);
    if (plan) return std::make_shared<const ReadyConvolution>(problem, std::move(*plan), false);
  }
  std::vector<EnginePlan> plans;
  // Where shapes come and go, passes over the result cost less than a kernel that is compiled for each of them.
  const bool splits = preference == Preference::kSoonest && problem.Compiles();
  if (!splits) plans = OfferedPlans(api, handle, problem, 1, preference);
  if (!plans.empty()) return std::make_shared<const ReadyConvolution>(problem, std::move(plans[0]), false);
  plans = OfferedPlans(api, handle, problem.Bare(), 1, preference);
  if (!plans.empty()) return std::make_shared<const ReadyConvolution>(problem, std::move(plans[0]), true);
  throw Error("cuDNN " + std::to_string(api.cudnnGetVersion()) + " has no plan for the convolution " +
              problem.Describe() +
              "; set ONNXOPT_DISABLE=1 to run without onnxopt's kernels, and report this convolution");
}

}  // namespace

void ReadyConvolution::Run(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionPointers& at,
                           void* workspace) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!bare_) return plan_.Execute(handle, at, workspace);
  plan_.Execute(handle, {at.x, at.w, nullptr, nullptr, at.y}, workspace);
  RunEpilogue(api, handle, problem_, at, workspace);
}

std::int64_t ReadyConvolution::workspace() const {
  return std::max(plan_.workspace(), bare_ ? EpilogueScratch(problem_) : 0);
}

std::shared_ptr<const ReadyConvolution> ReadyFor(const cudnn::Api& api, Context context,
                                                 const ConvolutionProblem& problem, const EngineChoice* measured,
                                                 Preference preference) {
  const std::shared_ptr<Entry> entry = EntryOf({context, problem.Describe()});
  const std::lock_guard<std::mutex> lock(entry->building);
  if (auto plan = entry->plan.lock()) return plan;
  ConvolutionHandle& builder = BuilderOf(api, context);
  const std::lock_guard<std::mutex> builds(builder.mutex);
  auto plan = Build(api, builder.raw, problem, measured, preference);
  entry->plan = plan;
  return plan;
}

}  // namespace onnxopt::cuda
