// A folder of the user's cache: what a process has worked out and later ones need not. The rules are those of
// onnxopt/caches.py: $XDG_CACHE_HOME/onnxopt/<name>, ~/.cache/onnxopt/<name> without that variable.
//
// What lies in a cache is used without asking its author, so folder and files must belong to the user, and nobody else
// may be able to write to them. A cache that cannot be trusted, read or written costs time only: one warning names the
// folder. ONNXOPT_CACHE_SIZE=0 switches it off.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

namespace onnxopt {

// Thread-safe; processes may use one folder at the same time.
class UserCache {
 public:
  // format: tells what wrote the entries; entries of another format are none. Throws Error where ONNXOPT_CACHE_SIZE is
  // no size.
  UserCache(const std::string& name, std::string format);

  // What was written for the key. Nothing where there is none, where it was changed, or where it cannot be trusted.
  std::optional<std::string> Read(const std::string& key) const;

  // Keeps the content, or warns. Entries that were not used for the longest time make room.
  void Write(const std::string& key, const std::string& content) const;

 private:
  std::string NameOf(const std::string& key) const;
  std::string Sealed(const std::string& key, const std::string& content) const;
  void Warn(const std::string& problem) const;

  const std::string format_;
  const std::uint64_t limit_;  // bytes
  const std::string folder_;   // empty where there is no cache
  mutable std::atomic<bool> warned_{false};
};

}  // namespace onnxopt
