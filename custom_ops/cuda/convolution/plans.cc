#include "cuda/convolution/plans.h"

#include <map>

#include "cuda/convolution/epilogue.h"

namespace onnxopt::cuda {
namespace {

using Key = std::pair<Context, std::string>;

std::int64_t Aligned(std::int64_t bytes) {
  constexpr std::int64_t kAligned = 256;
  return (bytes + kAligned - 1) / kAligned * kAligned;
}

// Bytes of copies of the operands that are parts of tensors, 0 where one is none.
struct Copies {
  explicit Copies(const ConvolutionProblem& problem) {
    const ConvolutionSizes& s = problem.sizes;
    const auto size = static_cast<std::int64_t>(Size(problem.convolution.dtype));
    const std::int64_t result = Aligned(s.n * s.output_h * s.output_w * s.k * size);
    if (s.x_pixel != s.c) x = Aligned(s.n * s.h * s.w * s.c * size);
    if (problem.convolution.residual && s.residual_pixel != s.k) residual = result;
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
    if (plan) return std::make_shared<const ReadyConvolution>(problem, std::move(*plan), false, false);
  }
  for (const bool packed : {false, true}) {
    if (packed && !problem.HasParts()) break;
    const ConvolutionProblem of = packed ? problem.Packed() : problem;
    std::vector<EnginePlan> plans = OfferedPlans(api, handle, of, 1, preference);
    if (!plans.empty()) return std::make_shared<const ReadyConvolution>(problem, std::move(plans[0]), false, packed);
    plans = OfferedPlans(api, handle, of.Bare(), 1, preference);
    if (!plans.empty()) return std::make_shared<const ReadyConvolution>(problem, std::move(plans[0]), true, packed);
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
  RunPlan(api, handle, problem_, at, workspace);
}

void ReadyConvolution::RunPlan(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionProblem& problem,
                               const ConvolutionPointers& at, void* workspace) const {
  if (!bare_) return plan_.Execute(handle, at, workspace);
  plan_.Execute(handle, {at.x, at.w, nullptr, nullptr, at.y}, workspace);
  RunEpilogue(api, handle, problem, at);
}

void ReadyConvolution::RunPacked(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionPointers& at,
                                 void* workspace) const {
  const Copies copies(problem_);
  const ConvolutionSizes& s = problem_.sizes;
  const Dtype dtype = problem_.convolution.dtype;
  char* const free = static_cast<char*>(workspace) + Aligned(plan_.workspace());
  ConvolutionPointers packed = at;
  if (copies.x > 0) {
    CopyPixels(api, handle, dtype, {s.n, s.h, s.w, s.c}, at.x, s.x_pixel, free, s.c);
    packed.x = free;
  }
  const Pixels result{s.n, s.output_h, s.output_w, s.k};
  if (copies.residual > 0) {
    CopyPixels(api, handle, dtype, result, at.residual, s.residual_pixel, free + copies.x, s.k);
    packed.residual = free + copies.x;
  }
  if (copies.y > 0) packed.y = free + copies.x + copies.residual;
  RunPlan(api, handle, problem_.Packed(), packed, workspace);
  if (copies.y > 0) CopyPixels(api, handle, dtype, result, packed.y, s.k, at.y, s.y_pixel);
}

std::int64_t ReadyConvolution::workspace() const {
  if (!packed_) return plan_.workspace();
  const Copies copies(problem_);
  return Aligned(plan_.workspace()) + copies.x + copies.residual + copies.y;
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
