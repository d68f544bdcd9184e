#include "support/user_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <vector>

#include "support/error.h"
#include "support/file_status.h"
#include "support/sha256.h"

namespace onnxopt {
namespace {

constexpr char kSizeVariable[] = "ONNXOPT_CACHE_SIZE";
constexpr char kPartial[] = ".partial";
constexpr std::uint64_t kDefaultSize = 2'000'000'000;
constexpr double kKeptShare = 0.9;              // of the limit, after eviction
constexpr std::int64_t kPartialSeconds = 3600;  // a partial file older than this was left by a process that was killed
constexpr std::size_t kDigest = 64;             // hex digits
constexpr std::size_t kMaxBytes = std::size_t{64} << 20U;
constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }

  int number() const { return number_; }
  bool open() const { return number_ >= 0; }

 private:
  const int number_;
};

// "500M", "2GB", "1.5 g", "0": bytes.
std::uint64_t SizeLimit() {
  const char* text = std::getenv(kSizeVariable);
  if (text == nullptr) return kDefaultSize;
  std::string rest(text);
  rest.erase(std::remove_if(rest.begin(), rest.end(), [](unsigned char c) { return std::isspace(c) != 0; }),
             rest.end());
  if (rest.empty()) return kDefaultSize;
  char* end = nullptr;
  const bool digit = rest[0] >= '0' && rest[0] <= '9' && rest.find_first_of("xXeEnN") == std::string::npos;
  const double number = digit ? std::strtod(rest.c_str(), &end) : 0;
  std::string unit = digit ? end : "?";
  for (char& c : unit) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (!unit.empty() && unit.back() == 'B') unit.pop_back();
  constexpr char kUnits[] = "KMGT";
  const char* const at = unit.size() == 1 ? std::strchr(kUnits, unit[0]) : nullptr;
  if (!unit.empty() && at == nullptr) {
    throw Error(std::string(kSizeVariable) + "=" + text + ": not a size; write bytes, or 500MB, or 2GB");
  }
  double factor = 1;
  for (const char* k = kUnits; at != nullptr && k <= at; ++k) factor *= 1000;
  constexpr double kMax = 1e18;
  return static_cast<std::uint64_t>(std::min(number * factor, kMax));
}

std::string FolderOfUser(const std::string& name) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (cache != nullptr && *cache != '\0') return std::string(cache) + "/onnxopt/" + name;
  return home == nullptr || *home == '\0' ? "" : std::string(home) + "/.cache/onnxopt/" + name;
}

// Whether only this user writes what lies there.
bool IsTrusted(const struct statx& status) {
  return status.stx_uid == geteuid() && (status.stx_mode & kOthersWrite) == 0;
}

// Makes the folder where it is missing. Errors show when it is opened.
void MakeFolders(const std::string& path) {
  for (std::size_t end = path.find('/', 1); end != std::string::npos; end = path.find('/', end + 1)) {
    mkdir(path.substr(0, end).c_str(), S_IRWXU);
  }
  mkdir(path.c_str(), S_IRWXU);
}

int OpenFolder(const std::string& path) { return open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }

std::optional<std::string> Content(int file, std::size_t size) {
  std::string bytes(size, '\0');
  std::size_t have = 0;
  while (have < size) {
    const ssize_t count = read(file, bytes.data() + have, size - have);
    if (count <= 0) return std::nullopt;
    have += static_cast<std::size_t>(count);
  }
  return bytes;
}

bool WriteAll(int file, const std::string& bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = write(file, bytes.data() + done, bytes.size() - done);
    if (count <= 0) return false;
    done += static_cast<std::size_t>(count);
  }
  return true;
}

struct Entry {
  std::string name;
  std::int64_t used;
  std::uint64_t bytes;
};

// The regular files of a folder. What killed processes left is removed.
std::vector<Entry> Entries(int folder) {
  std::vector<Entry> entries;
  const int listed = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (listed < 0) return entries;
  DIR* const rows = fdopendir(listed);
  if (rows == nullptr) {
    close(listed);
    return entries;
  }
  const std::int64_t now = time(nullptr);
  while (const dirent* row = readdir(rows)) {
    const std::string name = row->d_name;
    struct statx status{};
    if (!StatusOf(folder, name.c_str(), AT_SYMLINK_NOFOLLOW, &status) || !S_ISREG(status.stx_mode)) continue;
    const bool partial =
        name.size() > std::strlen(kPartial) && name.rfind(kPartial) == name.size() - std::strlen(kPartial);
    if (partial) {
      if (now - status.stx_mtime.tv_sec > kPartialSeconds) unlinkat(folder, name.c_str(), 0);
    } else {
      entries.push_back({name, status.stx_mtime.tv_sec, static_cast<std::uint64_t>(status.stx_size)});
    }
  }
  closedir(rows);
  return entries;
}

void Evict(int folder, std::uint64_t limit, const std::string& keep) {
  std::vector<Entry> entries = Entries(folder);
  std::uint64_t total = 0;
  for (const Entry& entry : entries) total += entry.bytes;
  if (total <= limit) return;
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.used < b.used; });
  for (const Entry& entry : entries) {
    if (static_cast<double>(total) <= kKeptShare * static_cast<double>(limit)) return;
    if (entry.name == keep) continue;
    unlinkat(folder, entry.name.c_str(), 0);
    total -= entry.bytes;
  }
}

std::string PartialName() {
  std::random_device random;
  char text[17] = "";
  std::snprintf(text, sizeof(text), "%08x%08x", random(), random());
  return "." + std::string(text) + kPartial;
}

}  // namespace

UserCache::UserCache(const std::string& name, std::string format)
    : format_(std::move(format)), limit_(SizeLimit()), folder_(limit_ == 0 ? "" : FolderOfUser(name)) {}

std::string UserCache::NameOf(const std::string& key) const {
  const std::string text = format_ + '\0' + key;
  return Sha256(text.data(), text.size());
}

std::string UserCache::Sealed(const std::string& key, const std::string& content) const {
  const std::string text = format_ + '\0' + key + '\0' + content;
  return content + Sha256(text.data(), text.size());
}

std::optional<std::string> UserCache::Read(const std::string& key) const {
  if (folder_.empty()) return std::nullopt;
  const Descriptor folder(OpenFolder(folder_));
  struct statx status{};
  if (!folder.open() || !StatusOf(folder.number(), &status) || !IsTrusted(status)) return std::nullopt;
  const Descriptor file(openat(folder.number(), NameOf(key).c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.open() || !StatusOf(file.number(), &status) || !S_ISREG(status.stx_mode) || !IsTrusted(status)) {
    return std::nullopt;
  }
  const auto size = static_cast<std::size_t>(status.stx_size);
  if (size < kDigest || size > kMaxBytes) return std::nullopt;
  const std::optional<std::string> bytes = Content(file.number(), size);
  if (!bytes) return std::nullopt;
  std::string content = bytes->substr(0, size - kDigest);
  if (*bytes != Sealed(key, content)) return std::nullopt;
  futimens(file.number(), nullptr);  // eviction removes what was not used for the longest time
  return content;
}

void UserCache::Write(const std::string& key, const std::string& content) const {
  if (folder_.empty()) return;
  MakeFolders(folder_);
  const Descriptor folder(OpenFolder(folder_));
  struct statx status{};
  if (!folder.open() || !StatusOf(folder.number(), &status)) return Warn(std::strerror(errno));
  if (!IsTrusted(status)) return Warn("others than this user can write to it: chmod go-w or chown it");
  const std::string part = PartialName();
  const std::string name = NameOf(key);
  {
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    const Descriptor file(openat(folder.number(), part.c_str(), flags, S_IRUSR | S_IWUSR));
    if (!file.open()) return Warn(std::strerror(errno));
    if (!WriteAll(file.number(), Sealed(key, content))) {
      Warn(std::strerror(errno));
      unlinkat(folder.number(), part.c_str(), 0);
      return;
    }
  }
  if (renameat(folder.number(), part.c_str(), folder.number(), name.c_str()) != 0) {
    Warn(std::strerror(errno));
    unlinkat(folder.number(), part.c_str(), 0);
    return;
  }
  Evict(folder.number(), limit_, name);
}

void UserCache::Warn(const std::string& problem) const {
  if (warned_.exchange(true)) return;
  std::fprintf(stderr,
               "onnxopt: warning: %s: %s: what was compiled is not kept; make room there, or choose a folder that can "
               "be written (XDG_CACHE_HOME), or switch the cache off (%s=0)\n",
               folder_.c_str(), problem.c_str(), kSizeVariable);
}

}  // namespace onnxopt
