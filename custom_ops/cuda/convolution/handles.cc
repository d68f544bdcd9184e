#include "cuda/convolution/handles.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>
#include <utility>

namespace onnxopt::cuda {
namespace {

constexpr unsigned kMostBuilders = 16;

}  // namespace

ConvolutionHandle::ConvolutionHandle(const cudnn::Api& api) : api_(api) {
  api.Check(api.cudnnCreate(&raw), "cuDNN does not start on this GPU");
}

ConvolutionHandle::~ConvolutionHandle() { api_.cudnnDestroy(raw); }

std::shared_ptr<ConvolutionHandle> HandleOf(const cudnn::Api& api, Context context, Stream stream) {
  static std::mutex mutex;
  static auto* const known = new std::map<std::pair<Context, Stream>, std::weak_ptr<ConvolutionHandle>>;
  const std::lock_guard<std::mutex> lock(mutex);
  for (auto at = known->begin(); at != known->end();) at = at->second.expired() ? known->erase(at) : std::next(at);
  std::weak_ptr<ConvolutionHandle>& entry = (*known)[{context, stream}];
  std::shared_ptr<ConvolutionHandle> handle = entry.lock();
  if (handle != nullptr) return handle;
  handle = std::make_shared<ConvolutionHandle>(api);
  api.Check(api.cudnnSetStream(handle->raw, stream), "cuDNN does not take ONNX Runtime's stream");
  entry = handle;
  return handle;
}

ConvolutionHandle& BuilderOf(const cudnn::Api& api, Context context) {
  static std::mutex mutex;
  static auto* const known = new std::map<std::pair<Context, unsigned>, std::unique_ptr<ConvolutionHandle>>;
  static std::atomic<unsigned> turn{0};
  static const unsigned builders = std::clamp(std::thread::hardware_concurrency(), 1U, kMostBuilders);
  const std::lock_guard<std::mutex> lock(mutex);
  auto& entry = (*known)[{context, turn.fetch_add(1, std::memory_order_relaxed) % builders}];
  if (entry == nullptr) entry = std::make_unique<ConvolutionHandle>(api);
  return *entry;
}

}  // namespace onnxopt::cuda
