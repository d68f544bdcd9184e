#include "cuda/convolution/pending.h"

#include <cstdlib>
#include <vector>

#include "support/portability.h"

namespace onnxopt::cuda {
namespace {

struct Started {
  std::mutex mutex;
  std::vector<std::weak_ptr<PendingConvolution>> all;
};

Started& EveryStarted() {
  static auto* const started = new Started;
  return *started;
}

// A thread inside cuDNN must not outlive what cuDNN tears down at exit. Registered behind cuDNN's own handlers, so it
// runs before them.
void WaitForAll() {
  std::vector<std::weak_ptr<PendingConvolution>> all;
  {
    const std::lock_guard<std::mutex> lock(EveryStarted().mutex);
    all.swap(EveryStarted().all);
  }
  for (const auto& started : all) {
    if (const auto pending = started.lock()) pending->Wait();
  }
}

}  // namespace

std::shared_ptr<PendingConvolution> PendingConvolution::Start(std::function<Ready()> build) {
  auto pending = std::make_shared<PendingConvolution>(std::move(build));
  {
    Started& started = EveryStarted();
    const std::lock_guard<std::mutex> lock(started.mutex);
    static const bool registered = std::atexit(WaitForAll) == 0;
    if (!registered) {
      pending->Run();
      return pending;
    }
    for (auto at = started.all.begin(); at != started.all.end();) {
      at = at->expired() ? started.all.erase(at) : std::next(at);
    }
    started.all.push_back(pending);
  }
  try {
    pending->thread_ = std::thread([raw = pending.get()] { raw->Run(); });
  } catch (const std::system_error&) {
    pending->Run();  // no thread to be had: here and now
  }
  return pending;
}

PendingConvolution::Ready PendingConvolution::Take() {
  Wait();
  problem_.Rethrow();
  return ready_;
}

void PendingConvolution::Run() noexcept {
  try {
    ready_ = build_();
  } catch (...) {
    problem_.Keep();
  }
}

void PendingConvolution::Wait() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (thread_.joinable()) thread_.join();
}

}  // namespace onnxopt::cuda
