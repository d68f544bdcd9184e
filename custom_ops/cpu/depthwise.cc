#include "cpu/depthwise.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "cpu/blocks/peephole.h"
#include "cpu/evaluate/best_evaluator.h"
#include "cpu/part_runner.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kMostRowTasks = 256;

// One call's work: a task computes some rows of the result.
class RowJob {
 public:
  RowJob(const Depthwise& depthwise, const DepthwiseCall& call, const PartRunner* before, const PartRunner& after)
      : depthwise_(depthwise),
        call_(call),
        before_(before),
        after_(after),
        size_(Size(depthwise.dtype())),
        load_(BestEvaluator().load(depthwise.dtype())),
        rows_(static_cast<std::uint64_t>(call.batch * call.out_height)),
        task_((rows_ - 1) / kMostRowTasks + 1),
        weight_(
            Widened(depthwise.weight, depthwise.window.kernel[0] * depthwise.window.kernel[1] * depthwise.channels)),
        bias_(depthwise.bias ? Widened(*depthwise.bias, depthwise.channels) : std::vector<float>()) {
    if (!depthwise.expansion) return;
    wide_weight_ = Widened(depthwise.expansion->weight, depthwise.channels * depthwise.expansion->channels);
    if (depthwise.expansion->bias) wide_bias_ = Widened(*depthwise.expansion->bias, depthwise.channels);
  }

  std::size_t tasks() const { return static_cast<std::size_t>((rows_ - 1) / task_ + 1); }

  void Run(std::size_t t) noexcept {
    try {
      for (std::uint64_t row = t * task_; row < std::min(rows_, (t + 1) * task_); ++row)
        Row(static_cast<std::int64_t>(row));
    } catch (...) {
      failed_.store(true, std::memory_order_relaxed);
    }
  }

  void Finish() const {
    if (failed_.load(std::memory_order_relaxed)) throw Error("out of memory for scratch space");
  }

 private:
  std::vector<float> Widened(std::size_t input, std::int64_t count) const {
    std::vector<float> values(static_cast<std::size_t>(count));
    Widen(call_.input[input], values.size(), values.data());
    return values;
  }

  void Widen(const void* from, std::size_t count, float* to) const {
    if (load_ == nullptr) {
      std::copy_n(static_cast<const float*>(from), count, to);
    } else {
      load_(to, from, nullptr, nullptr, count);
    }
  }

  void Row(std::int64_t row) const {
    const Window& window = depthwise_.window;
    const std::int64_t channels = depthwise_.channels;
    const auto width = static_cast<std::size_t>(call_.width * channels);
    std::vector<float> sums(static_cast<std::size_t>(call_.out_width * channels));
    std::vector<float> x(width);
    std::vector<unsigned char> prepared(before_ == nullptr ? 0 : width * size_);
    std::vector<unsigned char> wide(depthwise_.expansion ? width * size_ : 0);
    for (std::size_t k = 0; k < bias_.size() && k < sums.size(); ++k) sums[k] = bias_[k];
    for (std::size_t k = static_cast<std::size_t>(channels); k < sums.size(); ++k) {
      sums[k] = sums[k - static_cast<std::size_t>(channels)];
    }
    const std::int64_t top = row % call_.out_height * window.strides[0] - call_.pad_top;
    for (std::int64_t r = 0; r < window.kernel[0]; ++r) {
      const std::int64_t h = top + r * window.dilations[0];
      if (h < 0 || h >= call_.height || width == 0) continue;
      const std::int64_t at = row / call_.out_height * call_.height + h;
      const auto row_bytes = static_cast<std::size_t>(call_.width * depthwise_.x_channels()) * size_;
      const void* from = static_cast<const char*>(call_.input[depthwise_.x]) + static_cast<std::size_t>(at) * row_bytes;
      if (depthwise_.expansion) {
        Expand(from, wide.data());
        from = wide.data();
      }
      if (before_ != nullptr) {
        before_->Run(from, 0, prepared.data());
        from = prepared.data();
      }
      Widen(from, width, x.data());
      AddRow(x.data(), weight_.data() + r * window.kernel[1] * channels, sums.data());
    }
    const std::uint64_t first = static_cast<std::uint64_t>(row) * sums.size();
    after_.Run(sums.data(), first, static_cast<char*>(call_.y) + first * Size(depthwise_.output));
  }

  // A row of pixels through the 1x1 convolution in front, rounded.
  void Expand(const void* from, unsigned char* to) const {
    const auto narrow = static_cast<std::size_t>(depthwise_.expansion->channels);
    const auto channels = static_cast<std::size_t>(depthwise_.channels);
    const auto pixels = static_cast<std::size_t>(call_.width);
    std::vector<float> x(pixels * narrow);
    std::vector<float> sums(pixels * channels);
    Widen(from, x.size(), x.data());
    for (std::size_t k = 0; k < sums.size(); ++k) {
      const float* const pixel = x.data() + k / channels * narrow;
      const float* const weight = wide_weight_.data() + k % channels * narrow;
      float sum = wide_bias_.empty() ? 0.0F : wide_bias_[k % channels];
      for (std::size_t c = 0; c < narrow; ++c) sum += pixel[c] * weight[c];
      sums[k] = sum;
    }
    BestEvaluator().store(depthwise_.dtype())(to, sums.data(), nullptr, nullptr, sums.size());
  }

  // A row of inputs through a row of weights.
  void AddRow(const float* x, const float* weights, float* sums) const {
    const Window& window = depthwise_.window;
    const std::int64_t channels = depthwise_.channels;
    for (std::int64_t w = 0; w < call_.out_width; ++w) {
      for (std::int64_t s = 0; s < window.kernel[1]; ++s) {
        const std::int64_t column = w * window.strides[1] - call_.pad_left + s * window.dilations[1];
        if (column < 0 || column >= call_.width) continue;
        const float* const pixel = x + column * channels;
        const float* const weight = weights + s * channels;
        float* const sum = sums + w * channels;
        for (std::int64_t c = 0; c < channels; ++c) sum[c] += pixel[c] * weight[c];
      }
    }
  }

  const Depthwise& depthwise_;
  const DepthwiseCall& call_;
  const PartRunner* const before_;
  const PartRunner& after_;
  const std::size_t size_;
  const StepFunction load_;
  const std::uint64_t rows_;
  const std::uint64_t task_;
  const std::vector<float> weight_;
  const std::vector<float> bias_;
  std::vector<float> wide_weight_;  // of the 1x1 convolution in front
  std::vector<float> wide_bias_;
  std::atomic<bool> failed_{false};
};

}  // namespace

DepthwiseCpuRunner::DepthwiseCpuRunner(const Depthwise& depthwise)
    : depthwise_(depthwise),
      before_(depthwise.before ? Peephole(depthwise.before->program) : Program()),
      after_(Peephole(depthwise.after.program)),
      before_plans_(before_),
      after_plans_(after_) {}

void DepthwiseCpuRunner::Run(const DepthwiseCall& call, OrtKernelContext* context) const {
  std::optional<PartRunner> before;
  if (depthwise_.before && call.width > 0) {
    before.emplace(*depthwise_.before, before_, before_plans_, call.input, call.width, depthwise_.channels);
  }
  const PartRunner after(depthwise_.after, after_, after_plans_, call.input, call.out_width, depthwise_.channels);
  RowJob job(depthwise_, call, before ? &*before : nullptr, after);
  const auto run = [](void* data, std::size_t t) { static_cast<RowJob*>(data)->Run(t); };
  Check(Ort().KernelContext_ParallelFor(context, run, job.tasks(), 0, &job));
  job.Finish();
}

void DepthwiseCpuKernel::Compute(OrtKernelContext* context) const {
  const DepthwiseCall call = OpenCall(depthwise_, context);
  if (call.y != nullptr) runner_.Run(call, context);
}

}  // namespace onnxopt
