// Counters on the GPU that outlive calls.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/launch/driver.h"

namespace onnxopt::cuda {

// Counters in which the blocks of a launch find out which of them ends last. They are 0 when a launch begins, and every
// launch leaves them 0. Each stream has its own, as two launches of one stream follow each other. Thread-safe.
class Counters {
 public:
  explicit Counters(const Driver& driver) : driver_(driver) {}

  // At least so many, for launches on the stream of the current call. nullptr where they are not there and cannot be
  // made: while the stream is captured, on the one handle of all threads' default streams, and where there is no
  // memory. Throws Error where they cannot be set to 0.
  unsigned* Of(Stream stream, std::size_t count) const;

 private:
  class Memory;
  struct Piece {
    unsigned* first;
    std::size_t count;
  };

  unsigned* Make(Stream stream, std::size_t count) const;

  const Driver& driver_;
  mutable std::mutex mutex_;  // of what follows
  mutable std::map<Stream, Piece> of_streams_;
  // All that were ever made: captured graphs may count in those that became too few.
  mutable std::vector<std::shared_ptr<Memory>> made_;
};

}  // namespace onnxopt::cuda
