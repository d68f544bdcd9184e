// Runs squeeze-excites on the GPU: a launch for both products, and one ahead of it for the map, where it is computed
// here.
#pragma once

#include <vector>

#include "call/fused_kernel.h"
#include "call/squeeze_excite.h"
#include "cuda/launch/launcher.h"
#include "cuda/launch/scratch.h"
#include "squeeze_excite/abi.h"

namespace onnxopt::cuda {

// Launching does not synchronize, and allocates nothing but the sums of tiles, the first time on a stream: it is safe
// under CUDA graph capture. Thread-safe.
class SqueezeExciteCudaKernel final : public FusedKernel {
 public:
  SqueezeExciteCudaKernel(const Kernel& kernel, const Library& library, const OrtKernelInfo* info);

  void Compute(OrtKernelContext* context) const override;

 private:
  // Has the map computed; `params` gets the sums of its tiles, added up where a row has many.
  void LaunchMap(const SqueezeExciteCall& call, SqueezeExciteParams* params, Stream stream, CallScratch* scratch) const;
  void Fold(SqueezeExciteParams* params, Stream stream) const;

  const SqueezeExcite& meaning_;
  const Launcher launcher_;
  const Allocator allocator_;
  const std::vector<Variant> of_map_;  // the depthwise convolution's entry points
};

}  // namespace onnxopt::cuda
