// ONNX Runtime's C API, checked: every status becomes an Error, every exception becomes a status.
#pragma once

#include <onnxruntime_c_api.h>

#include <exception>
#include <new>
#include <string>

#include "support/error.h"

namespace onnxopt {

// The API table of version ORT_API_VERSION. Valid after InitOrt succeeded.
const OrtApi& Ort();

// Takes the API table from the running ONNX Runtime. Returns nullptr, or a status if it is older than 1.21.
OrtStatus* InitOrt(const OrtApiBase* base);

// Throws Error with the status's message; releases the status.
void Check(OrtStatus* status);

// Runs `body` and turns what it throws into a status that starts with `where`.
template <typename Body>
OrtStatus* Guard(const char* where, Body&& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const std::bad_alloc&) {
    return Ort().CreateStatus(ORT_FAIL, "onnxopt: out of memory");
  } catch (const std::exception& e) {
    try {
      return Ort().CreateStatus(ORT_FAIL, ("onnxopt: " + std::string(where) + ": " + e.what()).c_str());
    } catch (...) {
      return Ort().CreateStatus(ORT_FAIL, "onnxopt: out of memory");
    }
  } catch (...) {
    return Ort().CreateStatus(ORT_FAIL, "onnxopt: unknown exception");
  }
}

}  // namespace onnxopt
