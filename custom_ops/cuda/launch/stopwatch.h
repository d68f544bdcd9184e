// Measures several ways of running one thing on the GPU, where and on what it will run.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "cuda/launch/driver.h"

namespace onnxopt::cuda {

struct Timed {
  std::size_t way;
  double microseconds;
};

// How much to measure: runs of one measurement, with the cache cleared between them and without; measurements, of which
// the best counts, as what disturbs only adds; and how many ways are measured once more.
struct Effort {
  int cold_runs;
  int warm_runs;
  int measurements;
  std::size_t finalists;
};
inline constexpr Effort kCareful{8, 64, 3, 4};
inline constexpr Effort kQuick{4, 32, 2, 2};  // half a millisecond a way

// Memory with which a Stopwatch clears the cache. Throws Error where the GPU has none left.
std::shared_ptr<void> MemoryToEvictWith(const Driver& driver);

// Runs on a stream that is not capturing, and synchronizes it.
class Stopwatch {
 public:
  // evicting: clear the cache between runs, by writing to this memory. In a network, weights are used once a pass;
  // nullptr: every run finds its operands where the last one left them, as a kernel finds what the one before it wrote.
  Stopwatch(const Driver& driver, Stream stream, std::shared_ptr<void> evicting, const Effort& effort);

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
  const std::shared_ptr<void> evicting_;
  const Effort effort_;
  double idle_ = 0;  // microseconds that this takes
};

}  // namespace onnxopt::cuda
