#include "cpu/convolution.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "call/convolution.h"
#include "call/tensors.h"
#include "cpu/evaluate/best_evaluator.h"

namespace onnxopt {
namespace {

#if defined(__x86_64__)
#define ONNXOPT_EVERY_X86 __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define ONNXOPT_EVERY_X86
#endif

constexpr std::int64_t kLanes = 16;  // partial sums, so that the order of additions is the same on every CPU

// sums[lane] += x[i] * w[i] for i = lane, lane + kLanes, ...
ONNXOPT_EVERY_X86 void AddProducts(const float* x, const float* w, std::int64_t count, float* sums) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += x[i + lane] * w[i + lane];
  }
  for (; i < count; ++i) sums[i % kLanes] += x[i] * w[i];
}

// x below low becomes low, above high high; NaN stays.
float Clip(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

// slope: of a kPrelu.
float Activate(const Convolution& convolution, float x, float slope) {
  switch (convolution.activation) {
    case ConvolutionActivation::kNone:
      return x;
    case ConvolutionActivation::kRelu:
      return x < 0 ? 0 : x;
    case ConvolutionActivation::kSilu:
      return x / (1 + std::exp(-x));
    case ConvolutionActivation::kClip:
      return Clip(x, 0, convolution.activation_value);
    case ConvolutionActivation::kLeakyRelu:
      return x < 0 ? x * convolution.activation_value : x;
    case ConvolutionActivation::kPrelu:
      return x < 0 ? x * slope : x;
    case ConvolutionActivation::kHardSwish:
      return x * Clip(x / 6 + 0.5F, 0, 1);
  }
  return x;
}

// A tensor as float32: itself, or a copy.
class Floats {
 public:
  Floats(Dtype dtype, const void* data, std::int64_t count) : data_(static_cast<const float*>(data)) {
    const StepFunction load = BestEvaluator().load(dtype);
    if (load == nullptr) return;
    copy_.resize(static_cast<std::size_t>(count));
    if (count > 0) load(copy_.data(), data, nullptr, nullptr, copy_.size());
    data_ = copy_.data();
  }

  const float* data() const { return data_; }

 private:
  const float* data_;
  std::vector<float> copy_;
};

// One call's work: a task is a row of the output. An allocation failure is kept, as exceptions must not reach the
// thread pool.
class Job {
 public:
  Job(const Convolution& convolution, const ConvolutionSizes& sizes, const void* const* inputs, void* output)
      : convolution_(convolution),
        s_(sizes),
        x_(convolution.dtype, inputs[convolution.x], sizes.n * sizes.h * sizes.w * sizes.c),
        w_(convolution.dtype, inputs[convolution.w], sizes.k * sizes.r * sizes.s * (sizes.c / convolution.group)),
        bias_(convolution.dtype, convolution.bias ? inputs[*convolution.bias] : nullptr,
              convolution.bias ? sizes.k : 0),
        slope_(convolution.dtype, convolution.slope ? inputs[*convolution.slope] : nullptr,
               convolution.slope ? sizes.k : 0),
        residual_(convolution.residual ? static_cast<const char*>(inputs[*convolution.residual]) : nullptr),
        output_(static_cast<char*>(output)) {}

  std::size_t tasks() const { return static_cast<std::size_t>(s_.n * s_.output_h); }

  void Run(std::size_t task) noexcept {
    try {
      Line(static_cast<std::int64_t>(task) / s_.output_h, static_cast<std::int64_t>(task) % s_.output_h);
    } catch (...) {
      out_of_memory_.store(true, std::memory_order_relaxed);
    }
  }

  void Finish() const {
    if (out_of_memory_.load(std::memory_order_relaxed)) throw Error("out of memory for scratch space");
  }

 private:
  void Line(std::int64_t n, std::int64_t row) const {
    const std::int64_t count = s_.output_w * s_.k;
    const std::size_t first = static_cast<std::size_t>((n * s_.output_h + row) * count) * Size(convolution_.dtype);
    std::vector<float> line(static_cast<std::size_t>(count));
    const Floats residual(convolution_.dtype, residual_ == nullptr ? nullptr : residual_ + first,
                          residual_ == nullptr ? 0 : count);
    for (std::int64_t column = 0; column < s_.output_w; ++column) {
      for (std::int64_t k = 0; k < s_.k; ++k) {
        const std::int64_t at = column * s_.k + k;
        float value = convolution_.transposed ? SpreadSum(n, row, column, k) : Sum(n, row, column, k);
        if (convolution_.bias) value += bias_.data()[k];
        if (residual_ != nullptr && !convolution_.residual_last) value += residual.data()[at];
        value = Activate(convolution_, value, convolution_.slope ? slope_.data()[k] : 0);
        if (residual_ != nullptr && convolution_.residual_last) value += residual.data()[at];
        line[static_cast<std::size_t>(at)] = value;
      }
    }
    const StepFunction store = BestEvaluator().store(convolution_.dtype);
    if (store != nullptr) {
      store(output_ + first, line.data(), nullptr, nullptr, line.size());
    } else {
      std::copy(line.begin(), line.end(), reinterpret_cast<float*>(output_ + first));
    }
  }

  float Sum(std::int64_t n, std::int64_t row, std::int64_t column, std::int64_t k) const {
    const Window& window = convolution_.window;
    const std::int64_t channels = s_.c / convolution_.group;
    const std::int64_t first = k / (s_.k / convolution_.group) * channels;
    float sums[kLanes] = {};
    for (std::int64_t r = 0; r < s_.r; ++r) {
      const std::int64_t h = row * window.strides[0] - s_.pads[0] + r * window.dilations[0];
      if (h < 0 || h >= s_.h) continue;
      for (std::int64_t s = 0; s < s_.s; ++s) {
        const std::int64_t w = column * window.strides[1] - s_.pads[1] + s * window.dilations[1];
        if (w < 0 || w >= s_.w) continue;
        AddProducts(x_.data() + ((n * s_.h + h) * s_.w + w) * s_.c + first,
                    w_.data() + ((k * s_.r + r) * s_.s + s) * channels, channels, sums);
      }
    }
    float total = 0;
    for (const float sum : sums) total += sum;
    return total;
  }

  // Of a transposed convolution: the inputs that are spread over one output.
  float SpreadSum(std::int64_t n, std::int64_t row, std::int64_t column, std::int64_t k) const {
    const Window& window = convolution_.window;
    const std::int64_t channels = s_.c / convolution_.group;
    const std::int64_t results = s_.k / convolution_.group;
    const std::int64_t first = k / results * channels;
    float sum = 0;
    for (std::int64_t r = 0; r < s_.r; ++r) {
      const std::int64_t down = row + s_.pads[0] - r * window.dilations[0];
      const std::int64_t h = down / window.strides[0];
      if (down < 0 || down % window.strides[0] != 0 || h >= s_.h) continue;
      for (std::int64_t s = 0; s < s_.s; ++s) {
        const std::int64_t across = column + s_.pads[1] - s * window.dilations[1];
        const std::int64_t w = across / window.strides[1];
        if (across < 0 || across % window.strides[1] != 0 || w >= s_.w) continue;
        const float* x = x_.data() + ((n * s_.h + h) * s_.w + w) * s_.c + first;
        const float* weight = w_.data() + ((first * s_.r + r) * s_.s + s) * results + k % results;
        for (std::int64_t c = 0; c < channels; ++c) sum += x[c] * weight[c * s_.r * s_.s * results];
      }
    }
    return sum;
  }

  const Convolution& convolution_;
  const ConvolutionSizes& s_;
  const Floats x_;
  const Floats w_;
  const Floats bias_;
  const Floats slope_;
  const char* residual_;
  char* output_;
  std::atomic<bool> out_of_memory_{false};
};

}  // namespace

void ConvolutionCpuKernel::Compute(OrtKernelContext* context) const {
  const Convolution& convolution = kernel().meaning.As<Convolution>();
  Shape shapes[kConvolutionInputs];
  const void* inputs[kConvolutionInputs] = {};
  for (std::size_t k = 0; k < convolution.inputs; ++k) inputs[k] = InputTensor(context, k, &shapes[k]);
  const ConvolutionSizes sizes = MakeConvolution(convolution, shapes);
  void* output = OutputTensor(context, 0, sizes.output());
  if (output == nullptr || sizes.output().count() == 0) return;
  RunConvolution(context, convolution, sizes, inputs, output);
}

void RunConvolution(OrtKernelContext* context, const Convolution& convolution, const ConvolutionSizes& sizes,
                    const void* const* inputs, void* output) {
  Job job(convolution, sizes, inputs, output);
  const auto run = [](void* data, std::size_t t) { static_cast<Job*>(data)->Run(t); };
  if (job.tasks() == 1) {
    job.Run(0);
  } else {
    Check(Ort().KernelContext_ParallelFor(context, run, job.tasks(), 0, &job));
  }
  job.Finish();
}

}  // namespace onnxopt
