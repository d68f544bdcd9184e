// Plans that are built in threads of their own: cuDNN compiles some kernels for half a second each.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "cuda/convolution/plans.h"
#include "support/failure.h"

namespace onnxopt::cuda {

// One plan on its way. Thread-safe.
class PendingConvolution {
 public:
  using Ready = std::shared_ptr<const ReadyConvolution>;

  // Starts building. The process does not end before it is done.
  static std::shared_ptr<PendingConvolution> Start(std::function<Ready()> build);

  explicit PendingConvolution(std::function<Ready()> build) : build_(std::move(build)) {}
  PendingConvolution(const PendingConvolution&) = delete;
  PendingConvolution& operator=(const PendingConvolution&) = delete;
  ~PendingConvolution() { Wait(); }

  // Waits for the plan. Throws what building threw.
  Ready Take();

  // Waits until nothing is built any more.
  void Wait();

 private:
  void Run() noexcept;

  const std::function<Ready()> build_;
  std::mutex mutex_;  // of joining
  std::thread thread_;
  Ready ready_;
  Failure problem_;
};

}  // namespace onnxopt::cuda
