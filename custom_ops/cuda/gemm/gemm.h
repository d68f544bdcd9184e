// Runs a gemm node on the GPU through cuBLASLt, on ONNX Runtime's stream.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "call/fused_kernel.h"
#include "call/gemm.h"
#include "cuda/gemm/branches.h"
#include "cuda/gemm/few_rows.h"
#include "cuda/gemm/large_products.h"
#include "cuda/gemm/packed.h"
#include "cuda/gemm/product_plan.h"
#include "cuda/launch/launcher.h"
#include "cuda/launch/scratch.h"

namespace onnxopt::cuda {

// A product of a shape that was seen before does not synchronize: it is safe under CUDA graph capture. A new shape
// looks for its algorithm. Codes of 8-bit floats that cuBLASLt does not multiply here, which it may say as late as it
// runs a product, are widened to float16: those of a constant once, others in every call. Thread-safe.
class GemmCudaKernel final : public FusedKernel {
 public:
  // Throws Error if cuBLASLt is not there, or does not start on this GPU.
  GemmCudaKernel(const Kernel& kernel, const Library& library, const OrtKernelInfo* info);
  ~GemmCudaKernel() override;

  void Compute(OrtKernelContext* context) const override;

  static std::optional<std::string> Obstacle();
  static bool RunsWithoutFatbin(const Kernel& kernel);

 private:
  struct Call;

  // False where cuBLASLt does not take the operands' codes; then the outputs hold nothing yet. So are those below.
  bool RunParts(const Call& call, void* const* outputs) const;
  void RunOfPacked(Call* call, const PackedWeight& weight, void* const* outputs) const;
  bool RunPacked(const Call& call, const PackedWeight& weight, void* const* outputs) const;
  void RunWidened(const Call& call, const Shape* shapes, void* const* outputs) const;
  const void* WidenedConstant(const Call& call, std::size_t count) const;
  void Widen(const void* codes, void* numbers, std::size_t count, Stream stream) const;
  bool RunFewRows(const Call& call) const;
  bool RunActivated(const Call& call) const;
  bool RunBatch(const Call& call) const;
  bool RunInner(const Call& call, const Product& product, const Operands& operands) const;
  bool RunWithoutDepth(const Call& call) const;
  bool RunPlan(const Call& call, const PlanKey& key, const Operands& operands, CallScratch* scratch) const;
  Plan& PlanFor(const Call& call, const PlanKey& key, const Operands& operands) const;

  const Gemm& gemm_;
  const Driver& driver_;
  const Launcher launcher_;               // of entry points for few rows, or of the one that widens codes
  std::optional<PackedProducts> packed_;  // where b is packed
  std::optional<LargeProducts> large_;    // where cuBLASLt has no such activation
  const bool b_is_constant_;              // with all that belongs to it
  const FewRowsProducts few_rows_;
  bool states_shapes_;  // the graph, of the operands
  const cublaslt::Api& api_;
  const Allocator allocator_;
  mutable std::mutex mutex_;  // of all that follows, and of enqueueing
  mutable std::vector<std::unique_ptr<Plan>> plans_;
  mutable bool loaded_ = false;           // kernels of other sizes
  mutable std::vector<PlanKey> refused_;  // of products of codes
  mutable void* widened_b_ = nullptr;     // where b is constant
  mutable std::shared_ptr<Branches> branches_;
};

}  // namespace onnxopt::cuda
