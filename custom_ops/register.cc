// The library's only export: what ONNX Runtime calls when an application registers the library with a session.

#include <cstdlib>
#include <string>

#include "registry/artifact.h"
#include "support/ort.h"
#include "support/session_entry.h"

namespace onnxopt {
namespace {

constexpr char kDisableVariable[] = "ONNXOPT_DISABLE";
constexpr char kDisableEntry[] = "onnxopt.disable";

bool Disabled(const OrtSessionOptions* options) {
  const char* variable = std::getenv(kDisableVariable);
  if (variable != nullptr && std::string(variable) == "1") return true;
  return SessionEntry(options, kDisableEntry) == "1";
}

}  // namespace
}  // namespace onnxopt

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                                               const OrtApiBase* base) {
  if (OrtStatus* status = onnxopt::InitOrt(base)) return status;
  return onnxopt::Guard("registering the custom ops", [&] {
    if (onnxopt::Disabled(options)) return;
    for (const onnxopt::Artifact& artifact : onnxopt::Artifact::All()) artifact.Register(options);
  });
}
