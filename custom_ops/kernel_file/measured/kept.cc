#include "kernel_file/measured/kept.h"

#include <cstdlib>
#include <cstring>

namespace onnxopt {

bool MeasuresFirstRuns() {
  const char* const text = std::getenv("ONNXOPT_MEASURE");
  return text == nullptr || std::strcmp(text, "0") != 0;
}

bool ChoosesForSizesAlone() { return std::getenv("ONNXOPT_TUNE_SIZES") != nullptr; }

std::mutex& Measuring() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

void KeptEntries::Read(const std::string& key, const ReadEntry& read) const {
  const std::optional<std::string> text = cache_.Read(key);
  if (!text) return;
  try {
    ReadMeasured(*text, "", read);
  } catch (const Error&) {
    return;  // it is measured again
  }
}

void KeptEntries::Write(const std::string& key, const nlohmann::json& entry) const {
  cache_.Write(key, SealedMeasured(nlohmann::json::array({entry})));
}

}  // namespace onnxopt
