// Runs squeeze-excites on the CPU: the map over ONNX Runtime's threads, the two products on the calling one.
#pragma once

#include <optional>

#include "call/fused_kernel.h"
#include "call/squeeze_excite.h"
#include "cpu/blocks/plan_cache.h"
#include "cpu/depthwise.h"

namespace onnxopt {

class SqueezeExciteCpuKernel final : public FusedKernel {
 public:
  explicit SqueezeExciteCpuKernel(const Kernel& kernel);

  void Compute(OrtKernelContext* context) const override;

 private:
  // A product's program, with fused primitives.
  struct Behind {
    explicit Behind(const Program& given);
    // Of `count` float32 sums.
    void Run(const float* sums, std::size_t count, void* results) const;

    const Program program;
    const PlanCache plans;
  };

  const SqueezeExcite& meaning_;
  const Behind first_;
  const Behind second_;
  std::optional<DepthwiseCpuRunner> map_;
};

}  // namespace onnxopt
