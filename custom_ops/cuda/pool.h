// Pools on the GPU: which entry point runs a call, and what it is handed.
#pragma once

#include "cuda/core_kernel.h"
#include "pool/abi.h"
#include "program/generated/pool.h"

namespace onnxopt::cuda {

struct PoolCore : Core<PoolCore, Pool, CoreCall, CoreLaunch<PoolParams>> {
  // A pass takes as many images as a launch can have.
  static std::optional<Launch> LaunchOf(const Pool& pool, const Variant& variant, const CoreCall& call,
                                        const CoreGpu& gpu, std::uint64_t pass);

  // The first that fits, or of those with single outputs the next narrower one as long as there are few threads and
  // their loads are not too small.
  static std::size_t Choose(const Pool& pool, const std::vector<Variant>& variants, const CoreCall& call,
                            const CoreGpu& gpu);

  static CallSize SizeOf(const Pool& pool, const CoreCall& call);
};

using PoolCudaKernel = CoreKernel<PoolCore>;

}  // namespace onnxopt::cuda
