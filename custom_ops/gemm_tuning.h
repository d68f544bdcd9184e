// Measures cuBLASLt's algorithms for one product where it will run.
#pragma once

#include <memory>
#include <vector>

#include "cuda_driver.h"
#include "gemm_plan.h"
#include "gemm_workspace.h"

namespace onnxopt::cuda {

struct Measured {
  cublaslt::Candidate candidate;
  double microseconds;
};

// Runs products on a stream that is not capturing, synchronizes it, and allocates while it lives. Every run finds its
// operands in memory, not in the cache: in a network, weights are used once a pass.
class Stopwatch {
 public:
  // Throws Error if there is no memory.
  Stopwatch(const Driver& driver, Stream stream, std::shared_ptr<const Allocator> allocator);
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch();

  // The first candidate, and the fastest of all: another one only where it beats the first by more than the noise.
  std::pair<Measured, Measured> Fastest(Plan* plan, const std::vector<cublaslt::Candidate>& candidates,
                                        cublaslt::Handle handle, const Operands& operands, Scratch scratch) const;

 private:
  template <typename Body>
  double Microseconds(Body&& body) const;

  const Driver& driver_;
  const Stream stream_;
  std::shared_ptr<const Allocator> allocator_;
  Event start_ = nullptr;
  Event end_ = nullptr;
  void* evicted_ = nullptr;  // written between runs
  double idle_ = 0;          // microseconds that this takes
};

}  // namespace onnxopt::cuda
