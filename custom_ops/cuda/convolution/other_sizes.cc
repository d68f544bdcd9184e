#include "cuda/convolution/other_sizes.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "cuda/launch/stopwatch.h"
#include "program/generated/costs.h"
#include "support/math.h"

namespace onnxopt::cuda {
namespace {

// From 2^-kSmaller to 2^kLarger times the pixels of the size that runs.
constexpr int kSmaller = 9;
constexpr int kLarger = 5;
constexpr int kMaxPixels = 26;                                     // 2^26, 8,192 by 8,192
constexpr int kLoadedPixels = 8;                                   // 2^8, over which a kernel runs that is to be loaded
constexpr std::int64_t kMaxLoadedBytes = std::int64_t{64} << 20U;  // that it works in
constexpr int kTimedPowers = 3;  // from 2^-3 to 2^3 times the pixels of the size that runs
constexpr std::int64_t kMaxTimedBytes = std::int64_t{256} << 20U;  // of one size's operands and workspace
using costs::convolution::kFirstRunWorkspace;
using costs::convolution::kTimedPlans;

struct Other {
  int power;
  ConvolutionProblem like;  // of about 2^power pixels
};

std::vector<Other> Others(const ConvolutionProblem& planned) {
  const int power = planned.PowerOfPixels();
  std::vector<Other> others;
  for (int other = std::max(0, power - kSmaller); other <= std::min(power + kLarger, kMaxPixels); ++other) {
    if (const std::optional<ConvolutionProblem> like = planned.OfPixels(other)) others.push_back({other, *like});
  }
  return others;
}

// Whether cuDNN may leave it to cuBLASLt, which chooses a kernel by the numbers of rows and columns.
bool IsProduct(const ConvolutionProblem& problem) {
  const Convolution& convolution = problem.convolution;
  const ConvolutionSizes& sizes = problem.sizes;
  const bool one = sizes.t == 1 && sizes.r == 1 && sizes.s == 1;
  const bool alike = one && sizes.d == sizes.output_d && sizes.h == sizes.output_h && sizes.w == sizes.output_w;
  return alike && convolution.group == 1 && !convolution.transposed;
}

// The problem to run, so that a kernel is loaded: over few pixels, or over those of the size where that decides.
std::optional<ConvolutionProblem> ToLoad(const ConvolutionProblem& problem, int power) {
  if (!IsProduct(problem)) return problem.OfPixels(kLoadedPixels);
  return power > problem.PowerOfPixels() ? std::nullopt : problem.OfPixels(power);
}

// Whether nothing has run a choice for such problems in a context, whatever their sizes where these do not decide. It
// counts as run from now on.
bool IsNew(Context context, ConvolutionProblem problem, const EngineChoice& choice) {
  static std::mutex mutex;
  static auto* const measured = new std::set<std::tuple<Context, std::string, std::int64_t, decltype(choice.knobs)>>;
  if (!IsProduct(problem)) problem.sizes = {};
  const std::lock_guard<std::mutex> lock(mutex);
  return measured->emplace(context, problem.Describe(), choice.engine, choice.knobs).second;
}

// Memory of the operands that are no constants of a problem, and of a plan.
class Memory {
 public:
  Memory(const ConvolutionProblem& problem, std::int64_t workspace) : workspace_bytes_(workspace) {
    const ConvolutionSizes& s = problem.sizes;
    const auto size = static_cast<std::int64_t>(Size(problem.convolution.dtype()));
    const std::int64_t pixels = s.output_pixels();
    x_bytes_ = RoundUp(s.input_pixels() * s.x_pixel * size, kAligned);
    residual_bytes_ = problem.convolution.residual ? RoundUp(pixels * s.residual_pixel * size, kAligned) : 0;
    y_bytes_ = RoundUp(pixels * s.y_pixel * size, kAligned);
  }

  std::int64_t bytes() const { return x_bytes_ + residual_bytes_ + y_bytes_ + workspace_bytes_; }

  // data: so many bytes.
  void Place(void* data) {
    x_ = static_cast<char*>(data);
    residual_ = x_ + x_bytes_;
    y_ = residual_ + residual_bytes_;
  }

  // The constants stay where they are.
  ConvolutionPointers Pointers(const ConvolutionPointers& at) const {
    return {x_, at.w, at.bias, at.residual == nullptr ? nullptr : residual_, at.slope, y_};
  }
  void* workspace() const { return y_ + y_bytes_; }

 private:
  static constexpr std::int64_t kAligned = 256;  // bytes

  std::int64_t workspace_bytes_;
  std::int64_t x_bytes_;
  std::int64_t residual_bytes_;
  std::int64_t y_bytes_;
  char* x_ = nullptr;
  char* residual_ = nullptr;
  char* y_ = nullptr;
};

using Ready = std::shared_ptr<const ReadyConvolution>;

// Plans that could run a problem, the first of which does. workspace: the most bytes that one wants.
struct Candidates {
  std::vector<std::pair<EngineChoice, Ready>> plans;
  std::int64_t workspace = 0;
};

Candidates CandidatesFor(const TimedOn& on, const ConvolutionProblem& problem, const EngineChoice& first) {
  std::vector<EngineChoice> choices{first};
  {
    BuilderHandle& builder = BuilderOf(on.api, on.context);
    const std::lock_guard<std::mutex> builds(builder.mutex);
    const ConvolutionProblem planned = problem.WithoutCompiling();
    for (const EnginePlan& plan : OfferedPlans(on.api, builder.raw, planned, kTimedPlans, Preference::kReady)) {
      const std::optional<EngineChoice> choice = plan.Choice();
      if (choice && !(*choice == first) && plan.workspace() <= kFirstRunWorkspace) choices.push_back(*choice);
    }
  }
  Candidates candidates;
  for (const EngineChoice& choice : choices) {
    Ready ready = ReadyBy(on.api, on.context, problem, choice);
    if (ready == nullptr && choice == first) return {};
    if (ready == nullptr) continue;
    candidates.workspace = std::max(candidates.workspace, ready->workspace());
    candidates.plans.emplace_back(choice, std::move(ready));
  }
  return candidates;
}

// Which of the candidates is the fastest.
std::size_t FastestOf(const TimedOn& on, const Candidates& candidates, const ConvolutionPointers& at, void* workspace) {
  const BorrowedHandle handle(on.api, on.context, on.stream);
  const Stopwatch stopwatch(on.driver, on.stream, MemoryToEvictWith(on.driver), kQuick);
  return stopwatch
      .Fastest(candidates.plans.size(),
               [&](std::size_t way) { candidates.plans[way].second->Run(on.api, handle.raw(), at, workspace); })
      .second.way;
}

}  // namespace

bool TimeForSize(const TimedOn& on, const ConvolutionProblem& problem, const ConvolutionPointers& at) {
  const ConvolutionProblem planned = problem.WithoutCompiling();
  const std::optional<ConvolutionProblem> like = planned.OfPixels(planned.PowerOfPixels());
  if (!like) return false;
  ConvolutionPlans& table = ConvolutionPlans::Get();
  const std::size_t version = on.api.cudnnGetVersion();
  const std::optional<ExpectedPlan> expected = table.FindExpected(on.gpu, version, like->Describe());
  if (!expected || expected->timed) return false;
  const Candidates candidates = CandidatesFor(on, problem, expected->choice);
  std::size_t best = 0;
  if (candidates.plans.size() > 1) {
    best = FastestOf(on, candidates, at, on.scratch(static_cast<std::size_t>(candidates.workspace)));
  }
  const EngineChoice& choice = best == 0 ? expected->choice : candidates.plans[best].first;
  table.AddExpected(on.gpu, version, {{like->Describe(), {choice, true}}});
  return best != 0;
}

void TimeForSizes(const TimedOn& on, const ConvolutionProblem& problem, const ConvolutionPointers& at) {
  ConvolutionPlans& table = ConvolutionPlans::Get();
  const std::size_t version = on.api.cudnnGetVersion();
  const int power = problem.PowerOfPixels();
  std::map<std::string, ExpectedPlan> timed;
  for (const auto& [other, like] : Others(problem.WithoutCompiling())) {
    const std::optional<ExpectedPlan> expected = table.FindExpected(on.gpu, version, like.Describe());
    if (std::abs(other - power) > kTimedPowers || !expected || expected->timed) continue;
    const std::optional<ConvolutionProblem> run = problem.OfPixels(other);
    if (!run) continue;
    const Candidates candidates = CandidatesFor(on, *run, expected->choice);
    Memory memory(*run, candidates.workspace);
    if (candidates.plans.size() < 2 || memory.bytes() > kMaxTimedBytes) continue;
    memory.Place(on.scratch(static_cast<std::size_t>(memory.bytes())));
    const std::size_t best = FastestOf(on, candidates, memory.Pointers(at), memory.workspace());
    timed[like.Describe()] = {candidates.plans[best].first, true};
  }
  if (!timed.empty()) table.AddExpected(on.gpu, version, timed);
}

void ChooseForSizes(const cudnn::Api& api, Context context, const std::string& gpu, const ConvolutionProblem& problem) {
  ConvolutionPlans& measured = ConvolutionPlans::Get();
  std::map<std::string, ExpectedPlan> choices;
  BuilderHandle& builder = BuilderOf(api, context);
  const std::lock_guard<std::mutex> builds(builder.mutex);
  for (const auto& [power, like] : Others(problem.WithoutCompiling())) {
    if (measured.FindExpected(gpu, api.cudnnGetVersion(), like.Describe())) continue;
    const std::optional<EngineChoice> choice = AskHeuristic(api, builder.raw, like);
    if (choice) choices[like.Describe()] = {*choice, false};
  }
  if (!choices.empty()) measured.AddExpected(gpu, api.cudnnGetVersion(), choices);
}

void LoadForSizes(const cudnn::Api& api, Context context, Stream stream, const std::string& gpu,
                  const ConvolutionProblem& problem, const ConvolutionPointers& at,
                  const std::function<void*(std::size_t)>& scratch) {
  const ConvolutionPlans& measured = ConvolutionPlans::Get();
  const std::size_t version = api.cudnnGetVersion();
  if (!measured.ships(gpu, version)) return;
  for (const auto& [power, like] : Others(problem.WithoutCompiling())) {
    const std::optional<EngineChoice> choice = measured.FindShipped(gpu, version, like.Describe());
    const std::optional<ConvolutionProblem> run = ToLoad(problem, power);
    if (!choice || !run || !IsNew(context, like, *choice)) continue;
    try {
      const auto ready = ReadyBy(api, context, *run, *choice);
      if (ready == nullptr) continue;
      Memory memory(*run, ready->workspace());
      if (memory.bytes() > kMaxLoadedBytes) continue;
      memory.Place(scratch(static_cast<std::size_t>(memory.bytes())));
      const BorrowedHandle handle(api, context, stream);
      ready->Run(api, handle.raw(), memory.Pointers(at), memory.workspace());
    } catch (const Error&) {
      continue;  // nobody asked for it
    }
  }
}

}  // namespace onnxopt::cuda
