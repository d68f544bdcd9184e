// A product as a 1x1 convolution, which cuDNN runs: the rows of a are its pixels.
#pragma once

#include <optional>
#include <vector>

#include "cuda/convolution/plan.h"
#include "cuda/gemm/product_key.h"
#include "program/gemm.h"
#include "program/shape.h"

namespace onnxopt::cuda {

// One product through a plan of cuDNN's.
class ProductConvolution {
 public:
  ProductConvolution(const cudnn::Api& api, Context context, EnginePlan plan)
      : api_(&api), context_(context), plan_(std::move(plan)) {}

  // Bytes.
  std::size_t workspace() const { return static_cast<std::size_t>(plan_.workspace()); }

  // What has to be kept to make it again. Nothing where cuDNN does not tell.
  std::optional<EngineChoice> Choice() const { return plan_.Choice(); }

  // Enqueues the product. workspace: so many bytes as it asks for. Not thread-safe. Throws Error.
  void Run(const Operands& operands, void* workspace, Stream stream) const;

 private:
  const cudnn::Api* api_;
  Context context_;
  EnginePlan plan_;
};

// The convolution that computes the same as a product. Nothing where there is none: a must be [N, H, W, C], as that of
// a 1x1 convolution which became a product, b^T one matrix, and the epilogue one that the kind convolution has as well.
// a: the shape of that operand.
std::optional<ConvolutionProblem> AsConvolution(const Gemm& gemm, const PlanKey& key, const Shape& a);

// cuDNN where it is there with what it needs, else nullptr.
const cudnn::Api* CudnnForProducts();

// Up to `most` plans that cuDNN has ready, best first, of not more than `workspace` bytes. Empty where it refuses all.
// The context is current.
std::vector<ProductConvolution> OfferedConvolutions(const cudnn::Api& api, Context context,
                                                    const ConvolutionProblem& problem, std::size_t workspace,
                                                    std::size_t most);

// The plan of a choice that the same cuDNN made before on the same GPU model. Nothing where cuDNN refuses it now.
std::optional<ProductConvolution> RevivedConvolution(const cudnn::Api& api, Context context,
                                                     const ConvolutionProblem& problem, std::size_t workspace,
                                                     const EngineChoice& choice);

}  // namespace onnxopt::cuda
