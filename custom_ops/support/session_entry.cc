#include "support/session_entry.h"

namespace onnxopt {

std::optional<std::string> SessionEntry(const OrtSessionOptions* options, const char* name) {
  int present = 0;
  Check(Ort().HasSessionConfigEntry(options, name, &present));
  if (present == 0) return std::nullopt;
  std::size_t size = 0;
  Check(Ort().GetSessionConfigEntry(options, name, nullptr, &size));
  std::string value(size, '\0');
  Check(Ort().GetSessionConfigEntry(options, name, value.data(), &size));
  return std::string(value.c_str());
}

}  // namespace onnxopt
