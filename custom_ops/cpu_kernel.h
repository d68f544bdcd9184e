// Runs a fused node on the CPU: block by block in cache, over ONNX Runtime's threads.
#pragma once

#include <memory>
#include <mutex>

#include "call.h"
#include "plan.h"

namespace onnxopt {

class CpuKernel final : public PointwiseKernel {
 public:
  explicit CpuKernel(const Kernel& kernel);

 private:
  void Run(const Domain& domain, OrtKernelContext* context) const override;
  std::shared_ptr<const Plan> PlanFor(const PlanKey& key) const;

  const Program program_;  // the kernel's, with fused primitives
  const double cost_;      // estimated nanoseconds an element
  // The plan of the last call: shapes change, how they lie over each other hardly ever does.
  mutable std::mutex mutex_;
  mutable PlanKey last_key_;
  mutable std::shared_ptr<const Plan> last_plan_;
};

}  // namespace onnxopt
