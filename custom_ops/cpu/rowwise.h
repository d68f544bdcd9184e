// Runs a rowwise node on the CPU: some rows at a time in cache, over ONNX Runtime's threads.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "call/programs/rowwise.h"
#include "cpu/blocks/plan_cache.h"

namespace onnxopt {

// A piece's program with fused primitives, and the plan of its last call.
struct CpuPiece {
  explicit CpuPiece(const Piece& piece);

  std::vector<std::uint32_t> reads;
  Program program;
  PlanCache plans;
};

class RowwiseCpuKernel final : public RowKernel {
 public:
  explicit RowwiseCpuKernel(const Kernel& kernel);

 private:
  void Run(const Grid& grid, OrtKernelContext* context) const override;

  std::vector<std::unique_ptr<const CpuPiece>> element_;  // by stage
  std::vector<std::unique_ptr<const CpuPiece>> row_;      // by stage; null where there is none
  std::unique_ptr<const CpuPiece> output_;
  std::unique_ptr<const CpuPiece> row_output_;
  bool positions_ = false;  // whether a piece reads where elements lie in their rows
  double cost_;             // estimated nanoseconds an element
};

}  // namespace onnxopt
