#include "cuda/convolution/handles.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <thread>
#include <tuple>

namespace onnxopt::cuda {
namespace {

constexpr unsigned kMostBuilders = 16;

// builder: 0 for the handle of a stream, else the number of a builder.
ConvolutionHandle& Make(const cudnn::Api& api, Context context, Stream stream, unsigned builder) {
  static std::mutex mutex;
  static auto* const known = new std::map<std::tuple<Context, Stream, unsigned>, std::unique_ptr<ConvolutionHandle>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<ConvolutionHandle>& entry = (*known)[{context, stream, builder}];
  if (entry == nullptr) {
    auto made = std::make_unique<ConvolutionHandle>();
    api.Check(api.cudnnCreate(&made->raw), "cuDNN does not start on this GPU");
    if (builder == 0) api.Check(api.cudnnSetStream(made->raw, stream), "cuDNN does not take ONNX Runtime's stream");
    entry = std::move(made);
  }
  return *entry;
}

}  // namespace

ConvolutionHandle& HandleOf(const cudnn::Api& api, Context context, Stream stream) {
  return Make(api, context, stream, 0);
}

ConvolutionHandle& BuilderOf(const cudnn::Api& api, Context context) {
  static std::atomic<unsigned> turn{0};
  static const unsigned builders = std::clamp(std::thread::hardware_concurrency(), 1U, kMostBuilders);
  return Make(api, context, nullptr, 1 + turn.fetch_add(1, std::memory_order_relaxed) % builders);
}

}  // namespace onnxopt::cuda
