// SHA-256 (FIPS 180-4).
#pragma once

#include <cstddef>
#include <string>

namespace onnxopt {

// The digest in lower-case hex.
std::string Sha256(const void* data, std::size_t size);

}  // namespace onnxopt
