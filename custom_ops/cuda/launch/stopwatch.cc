#include "cuda/launch/stopwatch.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "program/generated/costs.h"
#include "support/error.h"

namespace onnxopt::cuda {
namespace {

constexpr std::size_t kEvictedBytes = std::size_t{96} << 20U;  // more than the largest L2 cache of a single GPU die
constexpr int kRelaxed = 2;                                    // CU_STREAM_CAPTURE_MODE_RELAXED
using costs::tuning::kNoise;

// A graph of what is enqueued while it is made, so that the host's time for enqueueing does not count.
class CapturedGraph {
 public:
  template <typename Body>
  CapturedGraph(const Driver& driver, Stream stream, Body&& body) : driver_(driver) {
    driver.Check(driver.cuStreamBeginCapture(stream, kRelaxed), "cannot capture what is to be measured");
    try {
      body();
    } catch (...) {
      driver.cuStreamEndCapture(stream, &graph_);  // the capture must end all the same
      if (graph_ != nullptr) driver.cuGraphDestroy(graph_);
      throw;
    }
    Result status = driver.cuStreamEndCapture(stream, &graph_);
    if (status == kSuccess) status = driver.cuGraphInstantiate(&executable_, graph_, 0);
    if (graph_ != nullptr) driver.cuGraphDestroy(graph_);
    driver.Check(status, "cannot capture what is to be measured");
  }
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;
  ~CapturedGraph() { driver_.cuGraphExecDestroy(executable_); }

  void Launch(Stream stream) const {
    driver_.Check(driver_.cuGraphLaunch(executable_, stream), "cannot run what is to be measured");
  }

 private:
  const Driver& driver_;
  Graph graph_ = nullptr;
  GraphExecutable executable_ = nullptr;
};

}  // namespace

std::shared_ptr<void> MemoryToEvictWith(const Driver& driver) {
  std::uintptr_t memory = 0;
  driver.Check(driver.cuMemAlloc(&memory, kEvictedBytes), "no memory to measure in");
  return {reinterpret_cast<void*>(memory),
          [&driver](void* data) { driver.cuMemFree(reinterpret_cast<std::uintptr_t>(data)); }};
}

Stopwatch::Mark::Mark(const Driver& driver) : driver_(driver) {
  driver.Check(driver.cuEventCreate(&event_, 0), "cannot make an event");
}

Stopwatch::Mark::~Mark() { driver_.cuEventDestroy(event_); }

Stopwatch::Stopwatch(const Driver& driver, Stream stream, std::shared_ptr<void> evicting, const Effort& effort)
    : driver_(driver), stream_(stream), start_(driver), end_(driver), evicting_(std::move(evicting)), effort_(effort) {
  if (evicting_ != nullptr) idle_ = Microseconds([] {});
}

void Stopwatch::Evict() const {
  if (evicting_ == nullptr) return;
  driver_.Check(driver_.cuMemsetD8Async(reinterpret_cast<std::uintptr_t>(evicting_.get()), 0, kEvictedBytes, stream_),
                "cannot clear the cache");
}

// Of one run of `body`, the eviction before it left out.
template <typename Body>
double Stopwatch::Microseconds(Body&& body) const {
  const int runs = evicting_ == nullptr ? effort_.warm_runs : effort_.cold_runs;
  body();  // loads its code, which a capture must not
  const CapturedGraph graph(driver_, stream_, [&] {
    for (int k = 0; k < runs; ++k) {
      Evict();
      body();
    }
  });
  graph.Launch(stream_);
  float best = std::numeric_limits<float>::infinity();
  for (int k = 0; k < effort_.measurements; ++k) {
    driver_.Check(driver_.cuEventRecord(start_.event(), stream_), "cannot record an event");
    graph.Launch(stream_);
    driver_.Check(driver_.cuEventRecord(end_.event(), stream_), "cannot record an event");
    driver_.Check(driver_.cuEventSynchronize(end_.event()), "what was measured failed");
    float milliseconds = 0;
    driver_.Check(driver_.cuEventElapsedTime(&milliseconds, start_.event(), end_.event()), "cannot read the time");
    best = std::min(best, milliseconds);
  }
  return static_cast<double>(best) * 1000 / runs - idle_;
}

std::pair<Timed, Timed> Stopwatch::Fastest(std::size_t ways, const std::function<void(std::size_t)>& run) const {
  std::vector<Timed> times;
  times.reserve(ways);
  const auto time = [&](std::size_t way) { return Microseconds([&] { run(way); }); };
  for (std::size_t way = 0; way < ways; ++way) times.push_back({way, time(way)});
  const auto faster = [](const Timed& a, const Timed& b) { return a.microseconds < b.microseconds; };
  Timed first = times[0];
  std::sort(times.begin(), times.end(), faster);
  times.resize(std::min(times.size(), effort_.finalists));
  // Once more, in turn, so that a lucky measurement does not decide.
  for (Timed& finalist : times) finalist.microseconds = time(finalist.way);
  first.microseconds = std::min(first.microseconds, time(first.way));
  const Timed best = *std::min_element(times.begin(), times.end(), faster);
  return {first, best.microseconds < kNoise * first.microseconds ? best : first};
}

}  // namespace onnxopt::cuda
