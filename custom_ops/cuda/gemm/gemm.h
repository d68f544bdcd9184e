// Runs a gemm node on the GPU through cuBLASLt, on ONNX Runtime's stream.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "call/fused_kernel.h"
#include "call/gemm.h"
#include "cuda/gemm/branches.h"
#include "cuda/gemm/packed.h"
#include "cuda/gemm/product_plan.h"
#include "cuda/launch/launcher.h"
#include "cuda/launch/scratch.h"

namespace onnxopt::cuda {

// A product of a shape that was seen before does not synchronize: it is safe under CUDA graph capture. A new shape
// looks for its algorithm. Thread-safe.
class GemmCudaKernel final : public FusedKernel {
 public:
  // Throws Error if cuBLASLt is not there, or does not start on this GPU.
  GemmCudaKernel(const Kernel& kernel, const Library& library, const OrtKernelInfo* info);

  void Compute(OrtKernelContext* context) const override;

 private:
  struct Call;

  void RunParts(const Call& call, void* const* outputs) const;
  bool RunPacked(const Call& call, const PackedWeight& weight, void* const* outputs) const;
  bool RunFewRows(const Call& call) const;
  void RunBatch(const Call& call) const;
  void RunInner(const Call& call, const Product& product, const Operands& operands) const;
  void RunWithoutDepth(const Call& call) const;
  Plan& PlanFor(const Call& call, const PlanKey& key, const Operands& operands) const;
  void Choose(const Call& call, Plan* plan, const Operands& operands) const;
  bool Measures(const Call& call) const;

  const Gemm& gemm_;
  const Driver& driver_;
  const Launcher launcher_;               // of entry points for few rows
  std::optional<PackedProducts> packed_;  // where b has codes
  bool b_is_constant_;                    // with all that belongs to it
  bool states_shapes_;                    // the graph, of the operands
  const cublaslt::Api& api_;
  const Allocator allocator_;
  mutable std::mutex mutex_;  // of all that follows, and of enqueueing
  mutable std::vector<std::unique_ptr<Plan>> plans_;
  mutable std::shared_ptr<Branches> branches_;
};

}  // namespace onnxopt::cuda
