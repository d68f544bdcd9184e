// The program behind a convolution, or in front of it, over one row of pixels after the other.
#pragma once

#include <cstdint>
#include <memory>

#include "cpu/blocks/plan_cache.h"
#include "cpu/pointwise.h"
#include "program/depthwise.h"

namespace onnxopt {

// Only the addresses change from row to row.
class PartRunner {
 public:
  // program: the part's, with fused primitives. inputs: of the kernel. width, channels: of a row.
  PartRunner(const DepthwisePart& part, const Program& program, const PlanCache& plans, const void* const* inputs,
             std::int64_t width, std::int64_t channels);

  // first: the row's first element among those of a tensor of the result's shape.
  void Run(const void* x, std::uint64_t first, void* y) const;

 private:
  const DepthwisePart& part_;
  const Program& program_;
  Domain domain_;
  Tiling tiling_;
  std::shared_ptr<const Plan> plan_;
};

}  // namespace onnxopt
