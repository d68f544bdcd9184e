#include "cuda/convolution/runner.h"

#include <algorithm>

#include "cuda/convolution/epilogue.h"
#include "cuda/launch/stopwatch.h"
#include "program/generated/costs.h"

namespace onnxopt::cuda {
namespace {

constexpr std::size_t kPlans = 32;       // of different shapes, that a node keeps
constexpr double kLargest = 1e12;        // elements; no GPU holds a tensor of more
constexpr std::int64_t kAlignment = 16;  // that engines ask for at most
using costs::convolution::kFirstRunPlans;
using costs::convolution::kFirstRunWorkspace;
using costs::convolution::kTunedPlans;

std::int64_t Alignment(const ConvolutionPointers& at) {
  std::uintptr_t bits = static_cast<std::uintptr_t>(kAlignment);
  for (const void* data : {at.x, at.w, at.bias, at.residual, at.slope, at.scale, static_cast<const void*>(at.y)}) {
    bits |= reinterpret_cast<std::uintptr_t>(data);
  }
  return static_cast<std::int64_t>(bits & (~bits + 1));
}

double PixelsOf(const ConvolutionSizes& sizes) {
  return static_cast<double>(sizes.n) * static_cast<double>(sizes.output_d) * static_cast<double>(sizes.output_h) *
         static_cast<double>(sizes.output_w);
}

}  // namespace

const cudnn::Api& FindCudnn() {
  const cudnn::Api* api = cudnn::Find();
  if (api == nullptr) {
    throw Error("no libcudnn.so.9 in this process; set ONNXOPT_DISABLE=1 to run without onnxopt's kernels");
  }
  cudnn::RequireCublaslt(*api);
  return *api;
}

ConvolutionRunner::ConvolutionRunner(const Driver& driver, const cudnn::Api& api, Preference preference)
    : driver_(driver), api_(api), preference_(preference) {
  ConvolutionPlans::Get();  // a damaged file shows now
}

void ConvolutionRunner::Prepare(ConvolutionProblem problem, bool alone) {
  if (alone) preference_ = Preference::kFastest;
  Context context = nullptr;
  driver_.Check(driver_.cuCtxGetCurrent(&context), "cannot ask for the CUDA context");
  const Convolution& convolution = problem.convolution;
  const bool waits = convolution.inputs[convolution.x] == Dtype::kFloat32 || ConvolutionPlans::Get().tunes();
  if (context == nullptr || waits) return;
  problem.alignment = kAlignment;
  const ConvolutionSizes& sizes = problem.sizes;
  const double elements = PixelsOf(sizes) * static_cast<double>(std::max(sizes.x_pixel, sizes.y_pixel));
  if (!alone && (elements > kLargest || recent_.size() == kPlans)) return;
  Recent entry = Named(problem, context, nullptr);
  if (problem.Compiles()) {
    entry.pending = PendingConvolution::Start([this, context, problem] {
      driver_.Check(driver_.cuCtxSetCurrent(context), "cannot enter the CUDA context");
      return Build(context, problem, Preference::kFastest);
    });
  } else {
    entry.plan = Build(context, problem, Preference::kFastest);
  }
  entry.stated = true;
  recent_.push_front(std::move(entry));
}

void ConvolutionRunner::FillFromNothing(const ConvolutionCall& call) const {
  if (call.problem.convolution.codes) {
    throw Error("the convolution of codes " + call.problem.Describe() +
                " has an input without pixels; set ONNXOPT_DISABLE=1 to run it without onnxopt's kernels");
  }
  const std::size_t bytes = call.problem.sizes.output.count() * Size(call.problem.convolution.dtype());
  driver_.Check(driver_.cuMemsetD8Async(reinterpret_cast<std::uintptr_t>(call.at.y), 0, bytes, call.stream),
                "cannot clear the result of a convolution");
  void* const scratch = call.scratch->Of(static_cast<std::size_t>(EpilogueScratch(call.problem)));
  const BorrowedHandle handle(api_, call.context, call.stream);
  RunEpilogue(api_, handle.raw(), call.problem, call.at, {call.at.y, call.problem.sizes.y_pixel}, scratch);
}

ConvolutionRunner::Ready ConvolutionRunner::PlanFor(ConvolutionCall* of) const {
  of->problem.alignment = Alignment(of->at);
  const ConvolutionCall& call = *of;
  const ConvolutionProblem& problem = call.problem;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!call.capturing) LoadOnce(call);
  const auto match = std::find_if(recent_.begin(), recent_.end(), [&](const Recent& entry) {
    return entry.sizes == problem.sizes && entry.tf32 == problem.tf32 && entry.alignment == problem.alignment &&
           entry.context == call.context;
  });
  if (match != recent_.end()) {
    recent_.splice(recent_.begin(), recent_, match);
  } else {
    if (call.capturing) {
      throw Error("the convolution " + problem.Describe() +
                  " runs for the first time while its stream is capturing; run the shape once before");
    }
    Measure(call);
    recent_.push_front(Named(problem, call.context, Build(call.context, problem, preference_)));
    recent_.front().stated = preference_ == Preference::kFastest;
    if (recent_.size() > kPlans) recent_.pop_back();
  }
  Ready& plan = recent_.front().plan;
  if (plan == nullptr) plan = recent_.front().pending->Take();
  if (!recent_.front().measured && !call.capturing) MeasureFirstRun(call, &recent_.front());
  if (call.capturing && std::find(captured_.begin(), captured_.end(), plan) == captured_.end()) {
    captured_.push_back(plan);
  }
  return plan;
}

ConvolutionRunner::Recent ConvolutionRunner::Named(const ConvolutionProblem& problem, Context context, Ready plan) {
  return {problem.sizes, problem.tf32, problem.alignment, context, std::move(plan), false, false, nullptr};
}

ConvolutionRunner::Ready ConvolutionRunner::Build(Context context, const ConvolutionProblem& problem,
                                                  Preference preference) const {
  const auto measured = ConvolutionPlans::Get().Find(NameOfGpu(driver_), api_.cudnnGetVersion(), problem.Describe());
  return ReadyFor(api_, context, Device(), problem, measured ? &measured->choice : nullptr, preference);
}

// At the first run of a node whose shapes come and go.
void ConvolutionRunner::LoadOnce(const ConvolutionCall& call) const {
  if (loaded_ || preference_ == Preference::kFastest || ConvolutionPlans::Get().tunes()) return;
  loaded_ = true;
  LoadForSizes(api_, call.context, call.stream, NameOfGpu(driver_), call.problem, call.at,
               [&](std::size_t bytes) { return call.scratch->Of(bytes); });
}

// Measures the plans of a problem that has no entry, where that is asked for.
void ConvolutionRunner::Measure(const ConvolutionCall& call) const {
  ConvolutionPlans& measured = ConvolutionPlans::Get();
  // The default stream cannot be captured, which measuring does.
  if (!measured.tunes() || call.stream == nullptr) return;
  const std::string problem = call.problem.Describe();
  const std::string gpu = NameOfGpu(driver_);
  if (preference_ == Preference::kSoonest) ChooseForSizes(api_, call.context, gpu, call.problem);
  if (ChoosesForSizesAlone()) return;
  const std::size_t version = api_.cudnnGetVersion();
  const std::lock_guard<std::mutex> alone(Measuring());
  if (preference_ == Preference::kSoonest) TimeForSizes(On(call, gpu), call.problem, call.at);
  if (measured.Find(gpu, version, problem)) return;
  const std::vector<EnginePlan> plans = Offered(call, kTunedPlans, Preference::kFastest);
  if (plans.empty()) return;
  const BorrowedHandle handle(api_, call.context, call.stream);
  std::int64_t bytes = 0;
  for (const EnginePlan& plan : plans) bytes = std::max(bytes, plan.workspace());
  void* const workspace = call.scratch->Of(static_cast<std::size_t>(bytes));
  const Stopwatch stopwatch(driver_, call.stream, MemoryToEvictWith(driver_), kCareful);
  const auto [first, best] =
      stopwatch.Fastest(plans.size(), [&](std::size_t way) { plans[way].Execute(handle.raw(), call.at, workspace); });
  const std::optional<EngineChoice> choice = plans[best.way].Choice();
  if (choice) measured.Add(gpu, version, problem, {*choice, best.microseconds, first.microseconds});
}

std::vector<EnginePlan> ConvolutionRunner::Offered(const ConvolutionCall& call, std::size_t most,
                                                   Preference preference) const {
  BuilderHandle& builder = BuilderOf(api_, call.context);
  const std::lock_guard<std::mutex> builds(builder.mutex);
  return OfferedPlans(api_, builder.raw, call.problem, most, preference);
}

TimedOn ConvolutionRunner::On(const ConvolutionCall& call, const std::string& gpu) const {
  return {api_, driver_, call.context, call.stream, gpu, [&](std::size_t bytes) { return call.scratch->Of(bytes); }};
}

// The first run of a shape: another plan that is ready may be faster than the heuristic's first.
void ConvolutionRunner::MeasureFirstRun(const ConvolutionCall& call, Recent* entry) const {
  entry->measured = true;
  ConvolutionPlans& measured = ConvolutionPlans::Get();
  if (!entry->stated) return MeasureSize(call, entry);
  const bool stated = entry->stated && !call.problem.Compiles() && entry->plan->is_one_plan();
  if (!stated || call.stream == nullptr || measured.tunes() || !MeasuresFirstRuns()) return;
  const std::string problem = call.problem.Describe();
  const std::string gpu = NameOfGpu(driver_);
  const std::size_t version = api_.cudnnGetVersion();
  if (measured.Find(gpu, version, problem)) return;
  const std::lock_guard<std::mutex> alone(Measuring());
  try {
    if (!measured.FindKept(gpu, version, problem)) MeasureBeside(call, *entry->plan);
  } catch (const Error&) {
    return;  // nobody asked for this measurement: the heuristic's plan runs
  }
  if (measured.Find(gpu, version, problem)) entry->plan = Build(call.context, call.problem, Preference::kFastest);
}

// The same of a shape that came with its input, once for all of about its size. Where `tune` has chosen for sizes, a
// new one must not take long.
void ConvolutionRunner::MeasureSize(const ConvolutionCall& call, Recent* entry) const {
  const ConvolutionPlans& measured = ConvolutionPlans::Get();
  const std::string gpu = NameOfGpu(driver_);
  const bool chosen = measured.tunes() || measured.ships(gpu, api_.cudnnGetVersion());
  if (call.stream == nullptr || chosen || !MeasuresFirstRuns()) return;
  const std::lock_guard<std::mutex> alone(Measuring());
  try {
    if (TimeForSize(On(call, gpu), call.problem, call.at)) entry->plan = Build(call.context, call.problem, preference_);
  } catch (const Error&) {
    return;  // nobody asked for this measurement: the heuristic's plan runs
  }
}

// Measures the plans that are ready beside the one that would run, and keeps the fastest.
void ConvolutionRunner::MeasureBeside(const ConvolutionCall& call, const ReadyConvolution& first) const {
  const std::optional<EngineChoice> own = first.Choice();
  std::vector<EnginePlan> plans = Offered(call, kFirstRunPlans, Preference::kReady);
  const auto unfit = [&](const EnginePlan& plan) {
    const std::optional<EngineChoice> choice = plan.Choice();
    return !choice || choice == own || plan.workspace() > kFirstRunWorkspace;
  };
  plans.erase(std::remove_if(plans.begin(), plans.end(), unfit), plans.end());
  if (plans.empty()) return;
  std::int64_t bytes = first.workspace();
  for (const EnginePlan& plan : plans) bytes = std::max(bytes, plan.workspace());
  void* const workspace = call.scratch->Of(static_cast<std::size_t>(bytes));
  const BorrowedHandle handle(api_, call.context, call.stream);
  const Stopwatch stopwatch(driver_, call.stream, MemoryToEvictWith(driver_), kQuick);
  const auto [heuristic, best] = stopwatch.Fastest(1 + plans.size(), [&](std::size_t way) {
    if (way == 0) return first.Run(api_, handle.raw(), call.at, workspace);
    plans[way - 1].Execute(handle.raw(), call.at, workspace);
  });
  const std::optional<EngineChoice> choice = best.way == 0 ? own : plans[best.way - 1].Choice();
  if (!choice) return;
  ConvolutionPlans::Get().Add(NameOfGpu(driver_), api_.cudnnGetVersion(), call.problem.Describe(),
                              {*choice, best.microseconds, heuristic.microseconds});
}

PlanDevice ConvolutionRunner::Device() const {
  cuda::Device device = 0;
  int numbers[3] = {};
  const int attributes[] = {kComputeCapabilityMajor, kComputeCapabilityMinor, kMultiprocessorCount};
  driver_.Check(driver_.cuCtxGetDevice(&device), "cannot ask for the GPU");
  for (std::size_t k = 0; k < 3; ++k) {
    driver_.Check(driver_.cuDeviceGetAttribute(&numbers[k], attributes[k], device), "cannot ask for a GPU's arch");
  }
  const std::string name = NameOfGpu(driver_);
  return {name, name + " " + std::to_string(numbers[0]) + "." + std::to_string(numbers[1]) + " of " +
                    std::to_string(numbers[2]) + " multiprocessors"};
}

}  // namespace onnxopt::cuda
