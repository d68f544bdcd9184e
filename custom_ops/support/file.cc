#include "support/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "support/error.h"
#include "support/file_status.h"

namespace onnxopt {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 20U;

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }

  int number() const { return number_; }

 private:
  const int number_;
};

[[noreturn]] void Fail(const std::string& path) { throw Error("cannot read " + path + ": " + std::strerror(errno)); }

}  // namespace

std::optional<std::string> ReadFile(const std::string& path, std::uint64_t max, const char* limit) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.number() < 0) {
    if (errno == ENOENT) return std::nullopt;
    Fail(path);
  }
  struct statx status{};
  if (!StatusOf(file.number(), &status)) Fail(path);
  if (!S_ISREG(status.stx_mode)) throw Error("cannot read " + path + ": it is no regular file");
  const auto check = [&](std::uint64_t size) {
    if (size <= max) return;
    throw Error(path + " has " + std::to_string(size) + " bytes, more than the " + std::to_string(max) + " that " +
                limit);
  };
  check(status.stx_size);
  std::string bytes;
  bytes.reserve(static_cast<std::size_t>(status.stx_size));
  for (;;) {
    const std::size_t size = bytes.size();
    bytes.resize(size + kChunk);
    const ssize_t count = read(file.number(), bytes.data() + size, kChunk);
    if (count < 0 && errno != EINTR) Fail(path);
    bytes.resize(size + static_cast<std::size_t>(count > 0 ? count : 0));
    if (count == 0) return bytes;
    check(bytes.size());  // somebody may be writing
  }
}

}  // namespace onnxopt
