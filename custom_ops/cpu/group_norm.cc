#include "cpu/group_norm.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "cpu/blocks/peephole.h"
#include "cpu/evaluate/best_evaluator.h"
#include "cpu/pointwise.h"

namespace onnxopt {
namespace {

// A part's program over some pixels of a sample.
class PixelRunner {
 public:
  PixelRunner(const GroupNorm& norm, const GroupPart& part, const Program& program, const PlanCache& plans,
              const GroupNormCall& call, std::int64_t pixels)
      : norm_(norm), part_(part), program_(program), call_(call) {
    const Shape whole{2, {pixels, norm.channels}};
    const Shape grouped{3, {pixels, norm.groups, norm.group()}};
    domain_.count = static_cast<std::uint64_t>(pixels * norm.channels);
    static unsigned char somewhere = 0;  // outputs that are written are told apart by not being null
    domain_.output[0] = &somewhere;
    domain_.input[0] = &somewhere;
    Collapse(whole, whole, &domain_.access[0]);
    for (std::size_t k = 0; k < part.reads.size(); ++k) {
      const GroupRead& read = part.reads[k];
      const Shape channels{1, {norm.channels}};
      domain_.input[k + 1] = call.input[read.input];
      Access* const access = &domain_.access[k + 1];
      if (read.form == GroupForm::kElement) Collapse(whole, whole, access);
      if (read.form == GroupForm::kChannel || read.form == GroupForm::kSample) Collapse(channels, whole, access);
      if (read.form == GroupForm::kGroup) Collapse(Shape{2, {norm.groups, 1}}, grouped, access);
      if (read.form == GroupForm::kScalar) Collapse(Shape{1, {1}}, whole, access);
    }
    tiling_ = Tile(program, domain_);
    plan_ = plans.For(tiling_.key);
  }

  // pixel: the first of the call's.
  void Run(const void* x, std::int64_t pixel, void* y) const {
    Domain domain = domain_;
    domain.input[0] = x;
    domain.output[0] = y;
    for (std::size_t k = 0; k < part_.reads.size(); ++k) {
      const GroupRead& read = part_.reads[k];
      std::int64_t first = 0;
      if (read.form == GroupForm::kElement) first = pixel * norm_.channels;
      if (read.form == GroupForm::kSample) {
        first = pixel / call_.pixels * (read.row != 0 ? read.row : norm_.channels) + read.first;
      }
      domain.input[k + 1] = static_cast<const char*>(domain_.input[k + 1]) +
                            static_cast<std::size_t>(first) * Size(program_.inputs[k + 1]);
    }
    RunBlocks(program_, *plan_, tiling_, domain, 0, domain.count);
  }

 private:
  const GroupNorm& norm_;
  const GroupPart& part_;
  const Program& program_;
  const GroupNormCall& call_;
  Domain domain_;
  Tiling tiling_;
  std::shared_ptr<const Plan> plan_;
};

// One call's work: a task for each sample.
class Job {
 public:
  Job(const GroupNorm& norm, const GroupNormCall& call, const PixelRunner* before, const PixelRunner& after)
      : norm_(norm),
        call_(call),
        before_(before),
        after_(after),
        load_(BestEvaluator().load(norm.dtype())),
        width_(static_cast<std::size_t>(call.pixels * norm.channels)) {}

  void Run(std::size_t sample) noexcept {
    try {
      Sample(static_cast<std::int64_t>(sample));
    } catch (...) {
      failed_.store(true, std::memory_order_relaxed);
    }
  }

  void Finish() const {
    if (failed_.load(std::memory_order_relaxed)) throw Error("out of memory for scratch space");
  }

 private:
  void Sample(std::int64_t sample) const {
    const std::size_t first = static_cast<std::size_t>(sample) * width_;
    std::vector<float> x(width_);
    const void* from = static_cast<const char*>(call_.input[norm_.x]) + first * Size(norm_.dtype());
    if (before_ != nullptr) {
      before_->Run(from, sample * call_.pixels, x.data());
    } else if (load_ == nullptr) {
      std::copy_n(static_cast<const float*>(from), width_, x.data());
    } else {
      load_(x.data(), from, nullptr, nullptr, width_);
    }
    for (std::int64_t g = 0; g < norm_.groups; ++g) Group(x.data() + g * norm_.group());
    after_.Run(x.data(), sample * call_.pixels, static_cast<char*>(call_.y) + first * Size(norm_.output));
  }

  // x: of the sample, from the group's first channel on.
  void Group(float* x) const {
    const double count = static_cast<double>(call_.pixels * norm_.group());
    double mean = 0;
    Each(x, [&](float& value) { mean += double{value}; });
    mean /= count;
    double squares = 0;
    Each(x, [&](float& value) { squares += (double{value} - mean) * (double{value} - mean); });
    const double factor = 1 / std::sqrt(squares / count + double{norm_.epsilon});
    Each(x, [&](float& value) { value = static_cast<float>((double{value} - mean) * factor); });
  }

  template <typename Body>
  void Each(float* x, Body&& body) const {
    for (std::int64_t pixel = 0; pixel < call_.pixels; ++pixel) {
      for (std::int64_t c = 0; c < norm_.group(); ++c) body(x[pixel * norm_.channels + c]);
    }
  }

  const GroupNorm& norm_;
  const GroupNormCall& call_;
  const PixelRunner* const before_;
  const PixelRunner& after_;
  const StepFunction load_;
  const std::size_t width_;
  std::atomic<bool> failed_{false};
};

}  // namespace

GroupNormCpuKernel::GroupNormCpuKernel(const Kernel& kernel)
    : FusedKernel(kernel),
      norm_(kernel.meaning.As<GroupNorm>()),
      before_(norm_.before ? Peephole(norm_.before->program) : Program()),
      after_(Peephole(norm_.after.program)),
      before_plans_(before_),
      after_plans_(after_) {}

void GroupNormCpuKernel::Compute(OrtKernelContext* context) const {
  const GroupNormCall call = OpenCall(norm_, context);
  if (call.y == nullptr) return;
  std::optional<PixelRunner> before;
  if (norm_.before) before.emplace(norm_, *norm_.before, before_, before_plans_, call, call.pixels);
  const PixelRunner after(norm_, norm_.after, after_, after_plans_, call, call.pixels);
  Job job(norm_, call, before ? &*before : nullptr, after);
  const auto run = [](void* data, std::size_t t) { static_cast<Job*>(data)->Run(t); };
  Check(Ort().KernelContext_ParallelFor(context, run, static_cast<std::size_t>(call.samples), 0, &job));
  job.Finish();
}

}  // namespace onnxopt
