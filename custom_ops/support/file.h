// Reading a file as a whole.
#pragma once

#include <optional>
#include <string>

namespace onnxopt {

// The bytes of a regular file, nothing where there is no file at `path`. Throws Error naming the path where it cannot
// be read or is no regular file: a pipe would have the reader wait.
std::optional<std::string> ReadFile(const std::string& path);

}  // namespace onnxopt
