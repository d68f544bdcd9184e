#include "cpu/image_convolution.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <vector>

#include "cpu/blocks/peephole.h"
#include "cpu/evaluate/best_evaluator.h"
#include "cpu/part_runner.h"

namespace onnxopt {
namespace {

// One call's work: a task is a row of the result. An allocation failure is kept, as exceptions must not reach the
// thread pool.
class ImageJob {
 public:
  ImageJob(const ImageConvolution& convolution, const ImageConvolutionCall& call, const PartRunner* before,
           const PartRunner& after)
      : convolution_(convolution),
        call_(call),
        before_(before),
        after_(after),
        load_(BestEvaluator().load(convolution.dtype)),
        taps_(convolution.window.kernel[0] * convolution.window.kernel[1]),
        weight_(ByTap()),
        bias_(convolution.bias ? Widened(*convolution.bias, convolution.filters)
                               : std::vector<float>(static_cast<std::size_t>(convolution.filters))) {}

  std::size_t tasks() const { return static_cast<std::size_t>(call_.batch * call_.out_height); }

  void Run(std::size_t task) noexcept {
    try {
      Row(static_cast<std::int64_t>(task));
    } catch (...) {
      out_of_memory_.store(true, std::memory_order_relaxed);
    }
  }

  void Finish() const {
    if (out_of_memory_.load(std::memory_order_relaxed)) throw Error("out of memory for scratch space");
  }

 private:
  std::vector<float> Widened(std::size_t input, std::int64_t count) const {
    return Widened(call_.input[input], 0, count);
  }

  std::vector<float> Widened(const void* data, std::int64_t first, std::int64_t count) const {
    std::vector<float> values(static_cast<std::size_t>(count));
    const auto bytes = static_cast<std::size_t>(first) * Size(convolution_.dtype);
    const char* const from = static_cast<const char*>(data) + bytes;
    if (load_ == nullptr) {  // of float32
      std::copy_n(reinterpret_cast<const float*>(from), values.size(), values.data());
    } else if (count > 0) {
      load_(values.data(), from, nullptr, nullptr, values.size());
    }
    return values;
  }

  // The weight as [R, S, channels, filters].
  std::vector<float> ByTap() const {
    const std::int64_t filters = convolution_.filters;
    const std::int64_t stored = convolution_.weight_channels;
    const std::vector<float> w = Widened(convolution_.weight, filters * taps_ * stored);
    std::vector<float> made;
    made.reserve(w.size());
    for (std::int64_t tap = 0; tap < taps_; ++tap) {
      for (std::int64_t c = 0; c < convolution_.channels; ++c) {
        for (std::int64_t k = 0; k < filters; ++k) made.push_back(w[(k * taps_ + tap) * stored + c]);
      }
    }
    return made;
  }

  void Row(std::int64_t row) const {
    const Window& window = convolution_.window;
    const std::int64_t filters = convolution_.filters;
    const std::int64_t channels = convolution_.channels;
    std::vector<float> sums(static_cast<std::size_t>(call_.out_width * filters));
    for (std::size_t k = 0; k < sums.size(); ++k) sums[k] = bias_[k % bias_.size()];
    const std::int64_t image = row / call_.out_height;
    const std::int64_t top = row % call_.out_height * window.strides[0] - call_.pad_top;
    for (std::int64_t r = 0; r < window.kernel[0]; ++r) {
      const std::int64_t h = top + r;
      if (h < 0 || h >= call_.height) continue;
      for (std::int64_t c = 0; c < channels; ++c) {
        const std::vector<float> x = Line(image, h, c);
        const float* const weight = weight_.data() + (r * window.kernel[1] * channels + c) * filters;
        AddLine(x, weight, sums.data());
      }
    }
    const std::uint64_t first = static_cast<std::uint64_t>(row) * sums.size();
    after_.Run(sums.data(), first, static_cast<char*>(call_.y) + first * Size(convolution_.dtype));
  }

  // One channel of a row of the image.
  std::vector<float> Line(std::int64_t image, std::int64_t h, std::int64_t c) const {
    const std::int64_t channels = convolution_.channels;
    const void* const x = call_.input[convolution_.x];
    if (before_ != nullptr) return Prepared(image, h, c);
    if (convolution_.planes) return Widened(x, ((image * channels + c) * call_.height + h) * call_.width, call_.width);
    const std::vector<float> every =
        Widened(x, (image * call_.height + h) * call_.width * channels, call_.width * channels);
    std::vector<float> line;
    line.reserve(static_cast<std::size_t>(call_.width));
    for (std::int64_t w = 0; w < call_.width; ++w) line.push_back(every[w * channels + c]);
    return line;
  }

  // The same behind the program in front, rounded.
  std::vector<float> Prepared(std::int64_t image, std::int64_t h, std::int64_t c) const {
    const std::int64_t channels = convolution_.channels;
    const std::size_t size = Size(convolution_.inputs[convolution_.x]);
    const auto count = static_cast<std::size_t>(call_.width * channels);
    const auto* const x = static_cast<const unsigned char*>(call_.input[convolution_.x]);
    std::vector<unsigned char> pixels(count * size);
    for (std::size_t k = 0; k < count; ++k) {
      const std::int64_t of = static_cast<std::int64_t>(k) % channels;
      const std::int64_t w = static_cast<std::int64_t>(k) / channels;
      const std::int64_t from = convolution_.planes ? ((image * channels + of) * call_.height + h) * call_.width + w
                                                    : ((image * call_.height + h) * call_.width + w) * channels + of;
      std::copy_n(x + static_cast<std::size_t>(from) * size, size, pixels.data() + k * size);
    }
    std::vector<unsigned char> prepared(count * Size(convolution_.dtype));
    before_->Run(pixels.data(), 0, prepared.data());
    const std::vector<float> every = Widened(prepared.data(), 0, static_cast<std::int64_t>(count));
    std::vector<float> line;
    line.reserve(static_cast<std::size_t>(call_.width));
    for (std::int64_t w = 0; w < call_.width; ++w) line.push_back(every[w * channels + c]);
    return line;
  }

  // weight: of the row's first tap; the next tap's lie `channels` filters further.
  void AddLine(const std::vector<float>& x, const float* weight, float* sums) const {
    const Window& window = convolution_.window;
    const std::int64_t filters = convolution_.filters;
    for (std::int64_t w = 0; w < call_.out_width; ++w) {
      for (std::int64_t s = 0; s < window.kernel[1]; ++s) {
        const std::int64_t column = w * window.strides[1] - call_.pad_left + s;
        if (column < 0 || column >= call_.width) continue;
        const float value = x[column];
        const float* const of_tap = weight + s * convolution_.channels * filters;
        for (std::int64_t k = 0; k < filters; ++k) sums[w * filters + k] += value * of_tap[k];
      }
    }
  }

  const ImageConvolution& convolution_;
  const ImageConvolutionCall& call_;
  const PartRunner* const before_;
  const PartRunner& after_;
  const StepFunction load_;
  const std::int64_t taps_;
  const std::vector<float> weight_;
  const std::vector<float> bias_;
  std::atomic<bool> out_of_memory_{false};
};

}  // namespace

ImageConvolutionCpuKernel::ImageConvolutionCpuKernel(const Kernel& kernel)
    : FusedKernel(kernel),
      convolution_(kernel.meaning.As<ImageConvolution>()),
      before_(convolution_.before ? Peephole(convolution_.before->program) : Program()),
      after_(Peephole(convolution_.after.program)),
      before_plans_(before_),
      after_plans_(after_) {}

void ImageConvolutionCpuKernel::Compute(OrtKernelContext* context) const {
  const ImageConvolutionCall call = OpenCall(convolution_, context);
  if (call.y == nullptr) return;
  const PartRunner after(convolution_.after, after_, after_plans_, call.input, call.out_width, convolution_.filters);
  std::optional<PartRunner> before;
  if (convolution_.before && call.width > 0) {
    before.emplace(*convolution_.before, before_, before_plans_, call.input, call.width, convolution_.channels);
  }
  ImageJob job(convolution_, call, before ? &*before : nullptr, after);
  const auto run = [](void* data, std::size_t t) { static_cast<ImageJob*>(data)->Run(t); };
  Check(Ort().KernelContext_ParallelFor(context, run, job.tasks(), 0, &job));
  job.Finish();
}

}  // namespace onnxopt
