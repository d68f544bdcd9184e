// How cuBLASLt runs one product: its descriptors, and the algorithm chosen for them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/gemm/cublaslt.h"
#include "program/gemm.h"

namespace onnxopt::cuda {

// What the choice of an algorithm depends on, besides the kernel.
struct PlanKey {
  std::int64_t m, n, k, batch, stride_a, stride_b, stride_d, ldb;
  unsigned alignment_a, alignment_b, alignment_c, alignment_d;  // bytes, a power of 2 up to 256
  bool tf32;                                                    // float32 products may round their operands to TF32
  bool workspace;                                               // there may be one
  Dtype operands;                                               // of a and b

  bool operator==(const PlanKey& other) const;
};

// Arguments of one product, in row-major terms: b is what cuBLASLt, which is column-major, calls A.
struct Operands {
  const void* a;
  const void* b;
  const void* bias;      // or nullptr
  const void* residual;  // or nullptr
  void* output;
};

// What cuBLAS itself takes on Hopper; algorithms that want more are not considered.
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20U;

class Plan {
 public:
  // Descriptors for the product; no algorithm yet. Throws Error where cuBLASLt refuses them.
  Plan(const cublaslt::Api& api, const Gemm& gemm, const PlanKey& key);
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan();

  // Algorithms that can run here, the one that the heuristic expects to be fastest first. Empty where there is none.
  std::vector<cublaslt::Candidate> Candidates(cublaslt::Handle handle, int most);

  // The candidate for an algorithm that was chosen before, by the same version of cuBLASLt. False where it cannot run.
  bool Revive(cublaslt::Handle handle, const cublaslt::Algorithm& algorithm, cublaslt::Candidate* candidate) const;

  void Choose(const cublaslt::Candidate& candidate) { chosen_ = candidate; }

  // Bytes that the chosen algorithm works in.
  std::size_t workspace() const { return chosen_.workspace; }

  // Enqueues the product. workspace: so many bytes as the algorithm wants. Not thread-safe: the bias's address is part
  // of a descriptor.
  void Run(cublaslt::Handle handle, const Operands& operands, void* workspace, Stream stream) {
    RunWith(chosen_, handle, operands, workspace, stream);
  }
  void RunWith(const cublaslt::Candidate& candidate, cublaslt::Handle handle, const Operands& operands, void* workspace,
               Stream stream);

  const PlanKey& key() const { return key_; }
  // As "float16 8x128x768 ...": what an algorithm was chosen for, the same in every process.
  std::string Describe() const;

 private:
  void Release();
  void SetLayouts();
  void SetAttributesOfCodes();
  cublaslt::Layout MakeLayout(Dtype dtype, std::int64_t rows, std::int64_t columns, std::int64_t distance,
                              std::int64_t stride) const;

  const cublaslt::Api& api_;
  const Gemm gemm_;
  const PlanKey key_;
  cublaslt::Operation operation_ = nullptr;
  cublaslt::Layout b_ = nullptr;
  cublaslt::Layout a_ = nullptr;
  cublaslt::Layout d_ = nullptr;
  cublaslt::Preference preference_ = nullptr;
  cublaslt::Candidate chosen_{};
};

}  // namespace onnxopt::cuda
