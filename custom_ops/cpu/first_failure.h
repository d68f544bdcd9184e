// What tasks of ONNX Runtime's thread pool throw, which must not reach it.
#pragma once

#include <exception>
#include <mutex>

namespace onnxopt {

// Keeps the first exception of a call's tasks. Thread-safe.
class FirstFailure {
 public:
  template <typename Body>
  void Guard(Body&& body) noexcept {
    try {
      body();
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
  }

  // Throws what was kept, when all tasks have ended.
  void Rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr failure_;
};

}  // namespace onnxopt
