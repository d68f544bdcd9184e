// The products of experts that have many rows, on cuBLASLt, one expert after the other.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "cuda/gemm/product_plan.h"
#include "cuda/launch/scratch.h"
#include "program/experts.h"

namespace onnxopt::cuda {

// Rows of one expert, which lie behind each other.
struct ExpertRows {
  std::int64_t expert;
  std::int64_t first;
  std::int64_t count;
};

// Where one product of all experts reads and writes.
struct ExpertsProductAt {
  const void* weight;
  const void* rows;
  void* results;
};

// Numbers of rows are rounded up, so that few plans are made and kept. What a product writes behind an expert's rows is
// the next expert's, which is computed later. Thread-safe.
class ExpertsProducts {
 public:
  ExpertsProducts(const Experts& meaning, const Driver& driver, const Allocator& allocator);

  // Whether cuBLASLt is there, and the call may wait for the GPU: nothing captures its stream.
  bool Run(Stream stream) const;

  // Rows that products may read and write behind `rows`.
  static std::uint64_t Behind(std::uint64_t rows);

  // Waits until the stream has written `most` tiles of 3 ints, {expert, first row, rows}, each expert's one after the
  // other, and how many of them there are.
  std::vector<ExpertRows> Read(const int* tiles, std::uint64_t most, Stream stream) const;

  // Enqueues the first product of the experts, or the second one. Throws Error where cuBLASLt refuses it.
  void Enqueue(bool second, const ExpertsProductAt& at, const std::vector<ExpertRows>& experts, Stream stream,
               const OrtKernelContext* call) const;

 private:
  struct Call;

  Plan& PlanFor(const Call& call, const PlanKey& key, const Operands& operands) const;

  const Experts& meaning_;
  const Driver& driver_;
  const Allocator& allocator_;
  const Gemm gemm_;
  mutable std::mutex mutex_;  // of what follows, and of enqueueing
  mutable std::vector<std::unique_ptr<Plan>> plans_;
};

}  // namespace onnxopt::cuda
