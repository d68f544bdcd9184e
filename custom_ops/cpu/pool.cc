#include "cpu/pool.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <vector>

#include "call/pool.h"
#include "cpu/evaluate/best_evaluator.h"

namespace onnxopt {
namespace {

// The steps of a window along one axis that lie inside of the tensor: from `first` on, `count` of them.
struct Inside {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

Inside InsideOf(const Window& window, int axis, std::int64_t begin, std::int64_t extent) {
  const std::int64_t dilation = window.dilations[axis];
  const std::int64_t skipped = begin < 0 ? (-begin + dilation - 1) / dilation : 0;
  const std::int64_t first = begin + skipped * dilation;
  const std::int64_t reach = first < extent ? (extent - 1 - first) / dilation + 1 : 0;
  return {first, std::max<std::int64_t>(0, std::min(window.kernel[axis] - skipped, reach))};
}

template <typename T>
T Least() {
  return std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
}

// One call's work: a task for every row of the output. An allocation failure is kept, as exceptions must not reach the
// thread pool.
class Job {
 public:
  Job(const Pool& pool, const PoolCall& call)
      : pool_(pool),
        call_(call),
        size_(Size(pool.dtype)),
        load_(BestEvaluator().load(pool.dtype)),
        store_(BestEvaluator().store(pool.dtype)) {}

  std::size_t tasks() const { return static_cast<std::size_t>(call_.n * call_.output_h); }

  void Run(std::size_t task) noexcept {
    try {
      if (pool_.dtype == Dtype::kInt8) return Row<std::int8_t>(static_cast<std::int64_t>(task));
      if (pool_.dtype == Dtype::kUint8) return Row<std::uint8_t>(static_cast<std::int64_t>(task));
      Row<float>(static_cast<std::int64_t>(task));
    } catch (...) {
      out_of_memory_.store(true, std::memory_order_relaxed);
    }
  }

  void Finish() const {
    if (out_of_memory_.load(std::memory_order_relaxed)) throw Error("out of memory for scratch space");
  }

 private:
  // T: the dtype to calculate in.
  template <typename T>
  void Row(std::int64_t row) const {
    const std::int64_t image = row / call_.output_h;
    const std::int64_t top = row % call_.output_h * pool_.window.strides[0] - call_.pad_top;
    const Inside rows = InsideOf(pool_.window, 0, top, call_.h);
    const auto channels = static_cast<std::size_t>(call_.c);
    std::vector<T> result(channels);
    std::vector<T> pixel(channels);
    for (std::int64_t w = 0; w < call_.output_w; ++w) {
      const Inside columns = InsideOf(pool_.window, 1, w * pool_.window.strides[1] - call_.pad_left, call_.w);
      std::fill(result.begin(), result.end(), pool_.operation == PoolOperation::kMax ? Least<T>() : T{});
      for (std::int64_t r = 0; r < rows.count; ++r) {
        const std::int64_t h = rows.first + r * pool_.window.dilations[0];
        for (std::int64_t c = 0; c < columns.count; ++c) {
          const std::int64_t at = (image * call_.h + h) * call_.w + columns.first + c * pool_.window.dilations[1];
          Take(Pixel(at, &pixel), &result);
        }
      }
      Finish(rows.count * columns.count, &result);
      Store(row * call_.output_w + w, result);
    }
  }

  template <typename T>
  const T* Pixel(std::int64_t at, std::vector<T>* buffer) const {
    const char* const data = static_cast<const char*>(call_.x) + static_cast<std::size_t>(at) * buffer->size() * size_;
    if (load_ == nullptr) return reinterpret_cast<const T*>(data);
    load_(buffer->data(), data, nullptr, nullptr, buffer->size());
    return buffer->data();
  }

  template <typename T>
  void Take(const T* pixel, std::vector<T>* result) const {
    T* const to = result->data();
    if (pool_.operation == PoolOperation::kMax) {
      for (std::size_t j = 0; j < result->size(); ++j) {
        to[j] = pixel[j] > to[j] || pixel[j] != pixel[j] ? pixel[j] : to[j];  // not a number stays
      }
    } else {
      for (std::size_t j = 0; j < result->size(); ++j) to[j] = static_cast<T>(to[j] + pixel[j]);
    }
  }

  template <typename T>
  void Finish(std::int64_t inside, std::vector<T>* result) const {
    if (pool_.operation == PoolOperation::kMax) {
      if (inside == 0) std::fill(result->begin(), result->end(), Lowest<T>());
      return;
    }
    if (inside == 0) return;
    const std::int64_t count = pool_.count_include_pad ? pool_.window.kernel[0] * pool_.window.kernel[1] : inside;
    for (T& mean : *result) mean = static_cast<T>(mean / static_cast<T>(count));
  }

  // The least finite number of the storage dtype.
  template <typename T>
  T Lowest() const {
    if (pool_.dtype == Dtype::kFloat16) return static_cast<T>(kLowestFloat16);
    if (pool_.dtype == Dtype::kBfloat16) return static_cast<T>(kLowestBfloat16);
    return std::numeric_limits<T>::lowest();
  }

  template <typename T>
  void Store(std::int64_t at, const std::vector<T>& result) const {
    char* const data = static_cast<char*>(call_.y) + static_cast<std::size_t>(at) * result.size() * size_;
    if (store_ == nullptr) {
      std::copy(result.begin(), result.end(), reinterpret_cast<T*>(data));
    } else {
      store_(data, result.data(), nullptr, nullptr, result.size());
    }
  }

  static constexpr float kLowestFloat16 = -65504.0F;
  static constexpr float kLowestBfloat16 = -0x1.fep127F;

  const Pool& pool_;
  const PoolCall& call_;
  const std::size_t size_;
  const StepFunction load_;
  const StepFunction store_;
  std::atomic<bool> out_of_memory_{false};
};

}  // namespace

void PoolCpuKernel::Compute(OrtKernelContext* context) const {
  const auto& pool = kernel().meaning.As<Pool>();
  const PoolCall call = OpenCall(pool, context);
  if (call.output_elements() == 0) return;
  Job job(pool, call);
  const auto run = [](void* data, std::size_t t) { static_cast<Job*>(data)->Run(t); };
  Check(Ort().KernelContext_ParallelFor(context, run, job.tasks(), 0, &job));
  job.Finish();
}

}  // namespace onnxopt
