// Reading a file as a whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace onnxopt {

// The bytes of a regular file, nothing where there is no file at `path`. Throws Error naming the path where it cannot
// be read, is no regular file (a pipe would have the reader wait), or has more than `max` bytes, of which none is read.
// limit: who says so, for the message.
std::optional<std::string> ReadFile(const std::string& path, std::uint64_t max, const char* limit);

// More than any file of JSON that onnxopt writes: 10,000 kernels take 40 MB.
constexpr std::uint64_t kMaxJson = std::uint64_t{256} << 20U;
constexpr char kLibraryLimit[] = "this library reads";

}  // namespace onnxopt
