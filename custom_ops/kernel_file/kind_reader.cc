#include "kernel_file/kind_reader.h"

namespace onnxopt {

void KindReader::CheckVariants(const JsonReader& json, bool has_fatbin, Kernel* kernel) const {
  if (has_fatbin && kernel->variants.empty()) json.Fail("is empty although there is a fatbin");
}

}  // namespace onnxopt
