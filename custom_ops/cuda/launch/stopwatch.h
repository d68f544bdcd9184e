// Measures several ways of running one thing on the GPU, where and on what it will run.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "cuda/launch/allocator.h"
#include "cuda/launch/driver.h"

namespace onnxopt::cuda {

struct Timed {
  std::size_t way;
  double microseconds;
};

// Runs on a stream that is not capturing, and synchronizes it.
class Stopwatch {
 public:
  // evicting: clear the cache between runs, with memory of this allocator. In a network, weights are used once a pass;
  // nullptr: every run finds its operands where the last one left them, as a kernel finds what the one before it wrote.
  // Throws Error if there is no memory.
  Stopwatch(const Driver& driver, Stream stream, std::shared_ptr<const Allocator> evicting);

  // The first way, and the fastest of all: another one only where it beats the first by more than the noise.
  std::pair<Timed, Timed> Fastest(std::size_t ways, const std::function<void(std::size_t)>& run) const;

 private:
  class Mark {
   public:
    explicit Mark(const Driver& driver);
    Mark(const Mark&) = delete;
    Mark& operator=(const Mark&) = delete;
    ~Mark();

    Event event() const { return event_; }

   private:
    const Driver& driver_;
    Event event_ = nullptr;
  };

  template <typename Body>
  double Microseconds(Body&& body) const;
  void Evict() const;

  const Driver& driver_;
  const Stream stream_;
  const Mark start_;
  const Mark end_;
  std::shared_ptr<void> evicted_;  // written between runs; nullptr where nothing is
  double idle_ = 0;                // microseconds that this takes
};

}  // namespace onnxopt::cuda
