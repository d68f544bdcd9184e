// Runs a scan on the CPU: block by block in cache, over ONNX Runtime's threads.
#pragma once

#include "call/programs/rowwise.h"
#include "cpu/blocks/plan_cache.h"
#include "program/programs/scan.h"

namespace onnxopt {

class ScanCpuKernel final : public RowKernel {
 public:
  explicit ScanCpuKernel(const Kernel& kernel);

 private:
  void Run(const Grid& grid, OrtKernelContext* context) const override;

  const Scan& scan_;
  const Program element_;  // with fused primitives
  const Program output_;
  const double cost_;  // estimated nanoseconds an element
  const PlanCache element_plans_;
  const PlanCache output_plans_;
};

}  // namespace onnxopt
