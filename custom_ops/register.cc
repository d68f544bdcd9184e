// The library's only export: what ONNX Runtime calls when an application registers the library with a session.

#include <cstdlib>
#include <set>
#include <sstream>
#include <string>

#include "registry/artifact.h"
#include "registry/kinds.h"
#include "support/nvtx.h"
#include "support/ort.h"
#include "support/session_entry.h"

namespace onnxopt {
namespace {

constexpr char kDisableVariable[] = "ONNXOPT_DISABLE";
constexpr char kDisableEntry[] = "onnxopt.disable";
constexpr char kLeaveOutEntry[] = "onnxopt.leave_out";

bool Disabled(const OrtSessionOptions* options) {
  const char* variable = std::getenv(kDisableVariable);
  if (variable != nullptr && std::string(variable) == "1") return true;
  return SessionEntry(options, kDisableEntry) == "1";
}

// The kinds that a session leaves out: their names, between commas.
std::set<std::string> LeftOut(const OrtSessionOptions* options) {
  std::set<std::string> kinds;
  std::istringstream names(SessionEntry(options, kLeaveOutEntry).value_or(""));
  for (std::string name; std::getline(names, name, ',');) {
    if (FindKind(name) == nullptr) {
      throw Error(std::string("the session entry ") + kLeaveOutEntry + " names `" + name +
                  "`, which is no kind of kernels; kernels.json names the kinds");
    }
    kinds.insert(name);
  }
  return kinds;
}

}  // namespace
}  // namespace onnxopt

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                                               const OrtApiBase* base) {
  if (OrtStatus* status = onnxopt::InitOrt(base)) return status;
  return onnxopt::Guard("registering the custom ops", [&] {
    if (onnxopt::Disabled(options)) return;
    onnxopt::LoadNvtx();
    const std::set<std::string> left_out = onnxopt::LeftOut(options);
    for (const onnxopt::Artifact& artifact : onnxopt::Artifact::All()) artifact.Register(options, left_out);
  });
}
