// What tasks of ONNX Runtime's thread pool throw, which must not reach it.
#pragma once

#include <mutex>

#include "support/failure.h"

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
      failure_.Keep();
    }
  }

  // Throws what was kept, when all tasks have ended.
  void Rethrow() const { failure_.Rethrow(); }

 private:
  std::mutex mutex_;
  Failure failure_;
};

}  // namespace onnxopt
