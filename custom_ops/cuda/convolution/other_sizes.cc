#include "cuda/convolution/other_sizes.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "support/math.h"

namespace onnxopt::cuda {
namespace {

// From 2^-kSmaller to 2^kLarger times the pixels of the size that runs.
constexpr int kSmaller = 9;
constexpr int kLarger = 5;
constexpr int kMaxPixels = 26;                                     // 2^26, 8,192 by 8,192
constexpr int kLoadedPixels = 8;                                   // 2^8, over which a kernel runs that is to be loaded
constexpr std::int64_t kMaxLoadedBytes = std::int64_t{64} << 20U;  // that it works in

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

}  // namespace

void ChooseForSizes(const cudnn::Api& api, Context context, const std::string& gpu, const ConvolutionProblem& problem) {
  ConvolutionPlans& measured = ConvolutionPlans::Get();
  std::map<std::string, EngineChoice> choices;
  BuilderHandle& builder = BuilderOf(api, context);
  const std::lock_guard<std::mutex> builds(builder.mutex);
  for (const auto& [power, like] : Others(problem.WithoutCompiling())) {
    if (measured.FindExpected(gpu, api.cudnnGetVersion(), like.Describe())) continue;
    const std::optional<EngineChoice> choice = AskHeuristic(api, builder.raw, like);
    if (choice) choices.emplace(like.Describe(), *choice);
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
