#include "support/ort.h"

#include <atomic>

namespace onnxopt {
namespace {

std::atomic<const OrtApi*> api{nullptr};

}  // namespace

const OrtApi& Ort() { return *api.load(std::memory_order_relaxed); }

OrtStatus* InitOrt(const OrtApiBase* base) {
  const OrtApi* table = base->GetApi(ORT_API_VERSION);
  if (table == nullptr) {
    // Version 1 of the table has had CreateStatus since the first release, at the same place.
    const OrtApi* first = base->GetApi(1);
    if (first == nullptr) return nullptr;
    const std::string text = std::string("onnxopt: this library needs ONNX Runtime 1.21 or later, this is ") +
                             base->GetVersionString() + "; upgrade it, or load model.onnx without the library";
    return first->CreateStatus(ORT_NOT_IMPLEMENTED, text.c_str());
  }
  api.store(table, std::memory_order_relaxed);
  return nullptr;
}

void Check(OrtStatus* status) {
  if (status == nullptr) return;
  std::string text = Ort().GetErrorMessage(status);
  Ort().ReleaseStatus(status);
  throw Error(text);
}

}  // namespace onnxopt
