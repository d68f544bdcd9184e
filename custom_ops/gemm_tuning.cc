#include "gemm_tuning.h"

#include <algorithm>
#include <exception>
#include <limits>

namespace onnxopt::cuda {
namespace {

constexpr std::size_t kEvictedBytes = std::size_t{96} << 20U;  // more than the largest L2 cache of a single GPU die
constexpr int kRuns = 8;                                       // of one measurement
constexpr int kMeasurements = 3;                               // the best counts: what disturbs only adds
constexpr std::size_t kFinalists = 4;
constexpr double kNoise = 0.97;
constexpr int kRelaxed = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED

// A graph of what is enqueued while it is made, so that the host's time for enqueueing does not count.
class CapturedGraph {
 public:
  template <typename Body>
  CapturedGraph(const Driver& driver, Stream stream, Body&& body) : driver_(driver) {
    driver.Check(driver.cuStreamBeginCapture(stream, kRelaxed), "cannot capture a product");
    std::exception_ptr failure;
    try {
      body();
    } catch (...) {
      failure = std::current_exception();  // the capture must end all the same
    }
    const Result ended = driver.cuStreamEndCapture(stream, &graph_);
    Result made = ended;
    if (ended == kSuccess && !failure) made = driver.cuGraphInstantiate(&executable_, graph_, 0);
    if (graph_ != nullptr) driver.cuGraphDestroy(graph_);
    if (failure) std::rethrow_exception(failure);
    driver.Check(made, "cannot capture a product");
  }
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;
  ~CapturedGraph() { driver_.cuGraphExecDestroy(executable_); }

  void Launch(Stream stream) const {
    driver_.Check(driver_.cuGraphLaunch(executable_, stream), "cannot run a captured product");
  }

 private:
  const Driver& driver_;
  Graph graph_ = nullptr;
  GraphExecutable executable_ = nullptr;
};

}  // namespace

Stopwatch::Stopwatch(const Driver& driver, Stream stream, std::shared_ptr<const Allocator> allocator)
    : driver_(driver), stream_(stream), allocator_(std::move(allocator)) {
  evicted_ = allocator_->get()->Alloc(allocator_->get(), kEvictedBytes);
  if (evicted_ == nullptr) throw Error("no memory to measure products in");
  driver_.Check(driver_.cuEventCreate(&start_, 0), "cannot make an event");
  driver_.Check(driver_.cuEventCreate(&end_, 0), "cannot make an event");
  idle_ = Microseconds([] {});
}

Stopwatch::~Stopwatch() {
  if (start_ != nullptr) driver_.cuEventDestroy(start_);
  if (end_ != nullptr) driver_.cuEventDestroy(end_);
  if (evicted_ != nullptr) allocator_->get()->Free(allocator_->get(), evicted_);
}

// Of one run of `body`, the eviction before it left out.
template <typename Body>
double Stopwatch::Microseconds(Body&& body) const {
  body();  // loads its code, which a capture must not
  const CapturedGraph graph(driver_, stream_, [&] {
    for (int k = 0; k < kRuns; ++k) {
      driver_.Check(driver_.cuMemsetD8Async(reinterpret_cast<std::uintptr_t>(evicted_), 0, kEvictedBytes, stream_),
                    "cannot clear the cache");
      body();
    }
  });
  graph.Launch(stream_);
  float best = std::numeric_limits<float>::infinity();
  for (int k = 0; k < kMeasurements; ++k) {
    driver_.Check(driver_.cuEventRecord(start_, stream_), "cannot record an event");
    graph.Launch(stream_);
    driver_.Check(driver_.cuEventRecord(end_, stream_), "cannot record an event");
    driver_.Check(driver_.cuEventSynchronize(end_), "a product failed while it was measured");
    float milliseconds = 0;
    driver_.Check(driver_.cuEventElapsedTime(&milliseconds, start_, end_), "cannot read the time");
    best = std::min(best, milliseconds);
  }
  return static_cast<double>(best) * 1000 / kRuns - idle_;
}

std::pair<Measured, Measured> Stopwatch::Fastest(Plan* plan, const std::vector<cublaslt::Candidate>& candidates,
                                                 cublaslt::Handle handle, const Operands& operands,
                                                 Scratch scratch) const {
  std::vector<Measured> times;
  const auto time = [&](const cublaslt::Candidate& candidate) {
    return Microseconds([&] { plan->RunWith(candidate, handle, operands, scratch, stream_); });
  };
  for (const cublaslt::Candidate& candidate : candidates) times.push_back({candidate, time(candidate)});
  Measured first = times[0];
  std::sort(times.begin(), times.end(),
            [](const Measured& a, const Measured& b) { return a.microseconds < b.microseconds; });
  times.resize(std::min(times.size(), kFinalists));
  // Once more, in turn, so that a lucky measurement does not decide.
  for (Measured& finalist : times) finalist.microseconds = time(finalist.candidate);
  first.microseconds = std::min(first.microseconds, time(first.candidate));
  const Measured best = *std::min_element(
      times.begin(), times.end(), [](const Measured& a, const Measured& b) { return a.microseconds < b.microseconds; });
  return {first, best.microseconds < kNoise * first.microseconds ? best : first};
}

}  // namespace onnxopt::cuda
