// The library's only export: what ONNX Runtime calls when an application registers the library with a session.

#include <cstdlib>
#include <string>

#include "registry/artifact.h"
#include "support/ort.h"

namespace onnxopt {
namespace {

constexpr char kDisableVariable[] = "ONNXOPT_DISABLE";
constexpr char kDisableEntry[] = "onnxopt.disable";

bool Disabled(const OrtSessionOptions* options) {
  const char* variable = std::getenv(kDisableVariable);
  if (variable != nullptr && std::string(variable) == "1") return true;
  int present = 0;
  Check(Ort().HasSessionConfigEntry(options, kDisableEntry, &present));
  if (present == 0) return false;
  std::size_t size = 0;
  Check(Ort().GetSessionConfigEntry(options, kDisableEntry, nullptr, &size));
  std::string value(size, '\0');
  Check(Ort().GetSessionConfigEntry(options, kDisableEntry, value.data(), &size));
  return std::string(value.c_str()) == "1";
}

}  // namespace
}  // namespace onnxopt

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                                               const OrtApiBase* base) {
  if (OrtStatus* status = onnxopt::InitOrt(base)) return status;
  return onnxopt::Guard("registering the custom ops", [&] {
    if (onnxopt::Disabled(options)) return;
    if (OrtCustomOpDomain* domain = onnxopt::Artifact::Get().domain()) {
      onnxopt::Check(onnxopt::Ort().AddCustomOpDomain(options, domain));
    }
  });
}
