#include "cuda/gemm/product_convolution.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "cuda/convolution/handles.h"

namespace onnxopt::cuda {
namespace {

constexpr std::size_t kImageRank = 4;
constexpr std::int64_t kAlignment = 16;  // bytes, that engines ask for at most

bool HasConvolutionsEpilogue(const Gemm& gemm) {
  const bool unscaled = gemm.alpha == 1 && (!gemm.residual || gemm.beta == 1);
  const bool apart = gemm.activates_apart();  // after the convolution
  const bool activates = gemm.activation == Activation::kNone || gemm.activation == Activation::kRelu || apart;
  return unscaled && activates && !gemm.gate;
}

bool Fits(const ProductConvolution& plan, std::size_t workspace) { return plan.workspace() <= workspace; }

}  // namespace

void ProductConvolution::Run(const Operands& operands, void* workspace, Stream stream) const {
  const BorrowedHandle handle(*api_, context_, stream);
  plan_.Execute(handle.raw(), {operands.a, operands.b, operands.bias, operands.residual, nullptr, operands.output},
                workspace);
}

std::optional<ConvolutionProblem> AsConvolution(const Gemm& gemm, const PlanKey& key, const Shape& a) {
  const bool one_matrix = key.batch == 1 && gemm.outputs.size() == 1 && key.ldb == key.k;
  const bool lies_so = !gemm.transpose_a && gemm.transpose_b && !gemm.packed && gemm.operands() == gemm.dtype();
  if (!one_matrix || !lies_so || key.operands != gemm.dtype() || !HasConvolutionsEpilogue(gemm)) return std::nullopt;
  if (a.rank != kImageRank && a.rank != kImageRank + 1) return std::nullopt;
  // The planes of a volume are rows of one image.
  const std::int64_t rows = a.rank == kImageRank ? a.dims[1] : a.dims[1] * a.dims[2];
  const std::int64_t columns = a.dims[a.rank - 2];
  if (a.dims[0] * rows * columns != key.m || a.dims[a.rank - 1] != key.k) return std::nullopt;
  ConvolutionProblem problem;
  problem.convolution.inputs = gemm.inputs;
  problem.convolution.outputs = gemm.outputs;
  problem.convolution.x = gemm.a;
  problem.convolution.w = gemm.b;
  problem.convolution.bias = gemm.bias;
  problem.convolution.residual = gemm.residual;
  if (gemm.activation == Activation::kRelu) problem.convolution.activation = ConvolutionActivation::kRelu;
  problem.sizes = {a.dims[0],
                   1,
                   rows,
                   columns,
                   key.k,
                   key.n,
                   1,
                   1,
                   1,
                   1,
                   rows,
                   columns,
                   {},
                   key.k,
                   key.n,
                   key.n,
                   ShapeOf({a.dims[0], rows, columns, key.n})};
  problem.tf32 = key.tf32;
  for (const unsigned bytes : {key.alignment_a, key.alignment_b, key.alignment_c, key.alignment_d}) {
    problem.alignment = std::min(problem.alignment, std::min(kAlignment, std::int64_t{bytes}));
  }
  return problem;
}

const cudnn::Api* CudnnForProducts() {
  const cudnn::Api* const api = cudnn::Find();
  if (api == nullptr) return nullptr;
  try {
    cudnn::RequireCublaslt(*api);
  } catch (const Error&) {
    return nullptr;
  }
  return api;
}

std::vector<ProductConvolution> OfferedConvolutions(const cudnn::Api& api, Context context,
                                                    const ConvolutionProblem& problem, std::size_t workspace,
                                                    std::size_t most) {
  std::vector<ProductConvolution> offered;
  BuilderHandle& builder = BuilderOf(api, context);
  const std::lock_guard<std::mutex> builds(builder.mutex);
  for (EnginePlan& plan : OfferedPlans(api, builder.raw, problem, most, Preference::kReady)) {
    ProductConvolution result(api, context, std::move(plan));
    if (Fits(result, workspace)) offered.push_back(std::move(result));
  }
  return offered;
}

std::optional<ProductConvolution> RevivedConvolution(const cudnn::Api& api, Context context,
                                                     const ConvolutionProblem& problem, std::size_t workspace,
                                                     const EngineChoice& choice) {
  BuilderHandle& builder = BuilderOf(api, context);
  const std::lock_guard<std::mutex> builds(builder.mutex);
  std::optional<EnginePlan> plan = RevivedPlan(api, builder.raw, problem, choice);
  if (!plan) return std::nullopt;
  ProductConvolution result(api, context, std::move(*plan));
  if (!Fits(result, workspace)) return std::nullopt;
  return result;
}

}  // namespace onnxopt::cuda
