#include "cuda/convolution/handles.h"

#include <algorithm>
#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <thread>
#include <utility>

namespace onnxopt::cuda {
namespace {

constexpr unsigned kMaxBuilders = 16;

cudnn::Handle Start(const cudnn::Api& api) {
  cudnn::Handle handle = nullptr;
  api.Check(api.cudnnCreate(&handle), "cuDNN does not start on this GPU");
  return handle;
}

}  // namespace

struct BorrowedHandle::Kept {
  cudnn::Handle raw;
  Context context;
  Stream stream;  // that it enqueued on last
  bool borrowed;
};

struct BorrowedHandle::Pool {
  std::mutex mutex;
  std::list<Kept> handles;  // those that were borrowed longest ago first
};

BorrowedHandle::Pool& BorrowedHandle::Handles() {
  static auto* const pool = new Pool;  // outlives every kernel
  return *pool;
}

BorrowedHandle::BorrowedHandle(const cudnn::Api& api, Context context, Stream stream) : kept_(nullptr) {
  Pool& pool = Handles();
  const std::lock_guard<std::mutex> lock(pool.mutex);
  auto best = pool.handles.end();
  std::size_t idle = 0;
  for (auto at = pool.handles.begin(); at != pool.handles.end(); ++at) {
    if (at->borrowed || at->context != context) continue;
    ++idle;
    if (best == pool.handles.end() || at->stream == stream) best = at;
  }
  if (best == pool.handles.end() || (best->stream != stream && idle < kMaxIdle)) {
    best = pool.handles.insert(pool.handles.end(), {Start(api), context, nullptr, false});
  }
  api.Check(api.cudnnSetStream(best->raw, stream), "cuDNN does not take ONNX Runtime's stream");
  best->stream = stream;
  best->borrowed = true;
  pool.handles.splice(pool.handles.end(), pool.handles, best);
  kept_ = &*best;
}

BorrowedHandle::~BorrowedHandle() {
  const std::lock_guard<std::mutex> lock(Handles().mutex);
  kept_->borrowed = false;
}

cudnn::Handle BorrowedHandle::raw() const { return kept_->raw; }

BuilderHandle& BuilderOf(const cudnn::Api& api, Context context) {
  static std::mutex mutex;
  static auto* const handles = new std::map<std::pair<Context, unsigned>, std::unique_ptr<BuilderHandle>>;
  static std::atomic<unsigned> turn{0};
  static const unsigned builders = std::clamp(std::thread::hardware_concurrency(), 1U, kMaxBuilders);
  const std::lock_guard<std::mutex> lock(mutex);
  auto& entry = (*handles)[{context, turn.fetch_add(1, std::memory_order_relaxed) % builders}];
  if (entry == nullptr) {
    auto handle = std::make_unique<BuilderHandle>();
    handle->raw = Start(api);
    entry = std::move(handle);
  }
  return *entry;
}

}  // namespace onnxopt::cuda
