// Samples of maps on the GPU: which entry point runs a call, and what it is handed.
#pragma once

#include "call/grid_sample.h"
#include "cuda/core_kernel.h"

namespace onnxopt::cuda {

struct GridSampleCore : Core<GridSampleCore, GridSample, GridSampleCall, CoreLaunch<GridSampleParams>> {
  // A pass takes as many b as a launch can have.
  static std::optional<Launch> LaunchOf(const GridSample& meaning, const Variant& variant, const GridSampleCall& call,
                                        const CoreGpu& gpu, std::uint64_t pass);

  static CallSize SizeOf(const GridSample& meaning, const GridSampleCall& call);

  static std::string Describe(const GridSample& meaning, const GridSampleCall& call);
};

using GridSampleCudaKernel = CoreKernel<GridSampleCore>;

}  // namespace onnxopt::cuda
