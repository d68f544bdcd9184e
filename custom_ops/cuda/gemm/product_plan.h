// How one product runs: cuBLASLt's descriptors and the algorithm chosen for them, or a convolution of cuDNN's.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/gemm/product_convolution.h"
#include "cuda/gemm/product_key.h"
#include "cuda/launch/cublaslt.h"
#include "program/gemm.h"

namespace onnxopt::cuda {

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
  void Choose(ProductConvolution convolution) { convolution_ = std::move(convolution); }

  // Bytes that the chosen algorithm works in.
  std::size_t workspace() const { return chosen_.workspace; }

  // Enqueues the product in the chosen way. Where cuDNN refuses to run the convolution, the algorithm runs, and from
  // then on. Not thread-safe: the bias's address is part of a descriptor.
  void Run(cublaslt::Handle handle, const Operands& operands, const Scratch& scratch, Stream stream);
  // By one algorithm. workspace: so many bytes as that wants.
  void RunWith(const cublaslt::Candidate& candidate, cublaslt::Handle handle, const Operands& operands, void* workspace,
               Stream stream);

  const PlanKey& key() const { return key_; }
  const Gemm& gemm() const { return gemm_; }
  // As "float16 8x128x768 ...": what an algorithm was chosen for, the same in every process.
  std::string Describe() const;
  // The same without dtypes and sizes.
  std::string DescribeKind() const;

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
  std::optional<ProductConvolution> convolution_;
  bool convolution_runs_ = true;
};

}  // namespace onnxopt::cuda
