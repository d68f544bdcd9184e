// What one thread threw, for another one to throw.
//
// Not std::exception_ptr: since GCC 11, headers inline its copies, which call symbols that are newer than the systems
// that the library runs on (portability.h).
#pragma once

#include <exception>
#include <new>
#include <optional>
#include <string>

#include "support/error.h"

namespace onnxopt {

// Keeps the first exception that it is given.
class Failure {
 public:
  // In a handler: keeps what is being handled.
  void Keep() noexcept {
    if (kept()) return;
    try {
      throw;
    } catch (const std::bad_alloc&) {
      no_memory_ = true;
    } catch (const std::exception& problem) {
      KeepText(problem.what());
    } catch (...) {
      KeepText("an exception that is none of the library's");
    }
  }

  bool kept() const { return no_memory_ || message_.has_value(); }

  // Throws what was kept: std::bad_alloc, or an Error with the message.
  void Rethrow() const {
    if (no_memory_) throw std::bad_alloc();
    if (message_) throw Error(*message_);
  }

 private:
  void KeepText(const char* text) noexcept {
    try {
      message_ = text;
    } catch (const std::bad_alloc&) {
      no_memory_ = true;
    }
  }

  bool no_memory_ = false;
  std::optional<std::string> message_;
};

}  // namespace onnxopt
