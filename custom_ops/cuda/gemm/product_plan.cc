#include "cuda/gemm/product_plan.h"

#include <algorithm>
#include <iterator>
#include <tuple>

#include "support/error.h"

namespace onnxopt::cuda {
namespace {

using cublaslt::Candidate;

auto Tie(const PlanKey& k) {
  return std::tie(k.m, k.n, k.k, k.batch, k.stride_a, k.stride_b, k.stride_d, k.ldb, k.alignment_a, k.alignment_b,
                  k.alignment_c, k.alignment_d, k.tf32, k.workspace, k.operands);
}

int DataType(Dtype dtype) {
  if (dtype == Dtype::kFloat16) return cublaslt::kReal16F;
  if (dtype == Dtype::kFloat8E4M3) return cublaslt::kReal8FE4M3;
  return dtype == Dtype::kBfloat16 ? cublaslt::kReal16BF : cublaslt::kReal32F;
}

int Epilogue(const Gemm& gemm) {
  int bits = gemm.bias ? cublaslt::kEpilogueBias : 0;
  if (gemm.activation == Activation::kRelu) bits |= cublaslt::kEpilogueRelu;
  if (gemm.activation == Activation::kGeluTanh) bits |= cublaslt::kEpilogueGelu;
  return bits == 0 ? cublaslt::kEpilogueDefault : bits;
}

}  // namespace

bool PlanKey::operator==(const PlanKey& other) const { return Tie(*this) == Tie(other); }

Plan::Plan(const cublaslt::Api& api, const Gemm& gemm, const PlanKey& key) : api_(api), gemm_(gemm), key_(key) {
  try {
    SetLayouts();
  } catch (const Error&) {
    Release();
    throw;
  }
}

Plan::~Plan() { Release(); }

void Plan::Release() {
  if (preference_ != nullptr) api_.cublasLtMatmulPreferenceDestroy(preference_);
  for (const cublaslt::Layout layout : {a_, b_, d_}) {
    if (layout != nullptr) api_.cublasLtMatrixLayoutDestroy(layout);
  }
  if (operation_ != nullptr) api_.cublasLtMatmulDescDestroy(operation_);
}

// Row-major output = op(a) @ op(b) is column-major output^T = op(b)^T @ op(a)^T, and a row-major matrix is its own
// transpose in column-major terms: so a and b change places, and nothing is transposed that was not before.
void Plan::SetLayouts() {
  const bool tf32 = key_.tf32 && key_.operands == Dtype::kFloat32;
  const int compute = tf32 ? cublaslt::kCompute32FFastTf32 : cublaslt::kCompute32F;
  api_.Check(api_.cublasLtMatmulDescCreate(&operation_, compute, cublaslt::kReal32F), "cannot describe a product");
  const auto set = [&](int attribute, int value) {
    api_.Check(api_.cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof(value)),
               "cannot describe a product (attribute " + std::to_string(attribute) + ")");
  };
  if (gemm_.transpose_b) set(cublaslt::kTransA, cublaslt::kTranspose);
  if (gemm_.transpose_a) set(cublaslt::kTransB, cublaslt::kTranspose);
  set(cublaslt::kEpilogue, Epilogue(gemm_));
  if (key_.operands == Dtype::kFloat8E4M3) SetAttributesOfCodes();
  const bool turned_b = gemm_.transpose_b;
  b_ = MakeLayout(key_.operands, turned_b ? key_.k : key_.n, turned_b ? key_.n : key_.k, key_.ldb, key_.stride_b);
  const std::int64_t lda = gemm_.transpose_a ? key_.m : key_.k;
  a_ = MakeLayout(key_.operands, lda, gemm_.transpose_a ? key_.k : key_.m, lda, key_.stride_a);
  d_ = MakeLayout(gemm_.dtype(), key_.n, key_.m, key_.n, key_.stride_d);
  api_.Check(api_.cublasLtMatmulPreferenceCreate(&preference_), "cannot make a preference");
  const auto prefer = [&](int attribute, const void* value, std::size_t size) {
    api_.Check(api_.cublasLtMatmulPreferenceSetAttribute(preference_, attribute, value, size),
               "cannot set a preference");
  };
  const std::uint64_t workspace = key_.workspace ? kWorkspaceBytes : 0;
  prefer(cublaslt::kMaxWorkspace, &workspace, sizeof(workspace));
  prefer(cublaslt::kReductionSchemes, &cublaslt::kReduceInComputeType, sizeof(cublaslt::kReduceInComputeType));
  int attribute = cublaslt::kMinAlignmentA;
  for (const std::uint32_t bytes : {key_.alignment_b, key_.alignment_a, key_.alignment_c, key_.alignment_d}) {
    prefer(attribute++, &bytes, sizeof(bytes));
  }
}

// Sums of a few products at a time lose bits below float16's before they are added in float32: the fast way, which
// rounds less than the codes did.
void Plan::SetAttributesOfCodes() {
  const std::int8_t fast = 1;
  api_.Check(api_.cublasLtMatmulDescSetAttribute(operation_, cublaslt::kFastAccumulation, &fast, sizeof(fast)),
             "cannot describe a product of codes");
  if (!gemm_.bias) return;
  const std::int32_t type = DataType(gemm_.dtype());
  api_.Check(api_.cublasLtMatmulDescSetAttribute(operation_, cublaslt::kBiasDataType, &type, sizeof(type)),
             "cannot describe the bias of a product of codes");
}

cublaslt::Layout Plan::MakeLayout(Dtype dtype, std::int64_t rows, std::int64_t columns, std::int64_t distance,
                                  std::int64_t stride) const {
  cublaslt::Layout layout = nullptr;
  api_.Check(api_.cublasLtMatrixLayoutCreate(&layout, DataType(dtype), static_cast<std::uint64_t>(rows),
                                             static_cast<std::uint64_t>(columns), distance),
             "cannot describe a matrix");
  if (key_.batch == 1) return layout;
  const auto count = static_cast<std::int32_t>(key_.batch);
  api_.Check(api_.cublasLtMatrixLayoutSetAttribute(layout, cublaslt::kBatchCount, &count, sizeof(count)),
             "cannot describe a batch");
  api_.Check(api_.cublasLtMatrixLayoutSetAttribute(layout, cublaslt::kBatchStride, &stride, sizeof(stride)),
             "cannot describe a batch");
  return layout;
}

std::vector<Candidate> Plan::Candidates(cublaslt::Handle handle, int most) {
  std::vector<Candidate> candidates(static_cast<std::size_t>(most));
  int count = 0;
  const cublaslt::Status status = api_.cublasLtMatmulAlgoGetHeuristic(handle, operation_, b_, a_, d_, d_, preference_,
                                                                      most, candidates.data(), &count);
  if (status != cublaslt::kSuccess) count = 0;  // CUBLAS_STATUS_NOT_SUPPORTED: there is none
  std::vector<Candidate> usable;
  for (int k = 0; k < count; ++k) {
    const Candidate& candidate = candidates[static_cast<std::size_t>(k)];
    if (candidate.state == cublaslt::kSuccess) usable.push_back(candidate);
  }
  return usable;
}

bool Plan::Revive(cublaslt::Handle handle, const cublaslt::Algorithm& algorithm, Candidate* candidate) const {
  const cublaslt::Status status =
      api_.cublasLtMatmulAlgoCheck(handle, operation_, b_, a_, d_, d_, &algorithm, candidate);
  candidate->algorithm = algorithm;
  return status == cublaslt::kSuccess && candidate->workspace <= (key_.workspace ? kWorkspaceBytes : 0);
}

void Plan::Run(cublaslt::Handle handle, const Operands& operands, const Scratch& scratch, Stream stream) {
  if (convolution_ && convolution_runs_) {
    try {
      return convolution_->Run(operands, scratch(convolution_->workspace()), stream);
    } catch (const cudnn::Refused&) {
      convolution_runs_ = false;  // CUDA graphs may go on using what it made
    }
  }
  RunWith(chosen_, handle, operands, scratch(chosen_.workspace), stream);
}

void Plan::RunWith(const Candidate& candidate, cublaslt::Handle handle, const Operands& operands, void* workspace,
                   Stream stream) {
  if (operands.bias != nullptr) {
    const void* const bias = static_cast<const void*>(&operands.bias);
    api_.Check(api_.cublasLtMatmulDescSetAttribute(operation_, cublaslt::kBiasPointer, bias, sizeof(void*)),
               "cannot set the bias");
  }
  const float beta = operands.residual == nullptr ? 0.0F : gemm_.beta;
  const void* c = operands.residual == nullptr ? operands.output : operands.residual;
  api_.Check(api_.cublasLtMatmul(handle, operation_, &gemm_.alpha, operands.b, b_, operands.a, a_, &beta, c, d_,
                                 operands.output, d_, &candidate.algorithm, workspace, candidate.workspace, stream),
             "the product did not start (" + Describe() + ")");
}

std::string Plan::Describe() const {
  std::string text{Row(key_.operands).name};
  const auto add = [&](const char* name, std::int64_t value) { text += std::string(name) + std::to_string(value); };
  if (gemm_.dtype() != key_.operands) text += " to " + std::string(Row(gemm_.dtype()).name);
  add(" m", key_.m);
  add(" n", key_.n);
  add(" k", key_.k);
  if (key_.batch != 1) {
    add(" batch", key_.batch);
    add(" strides ", key_.stride_a);
    add(",", key_.stride_b);
    add(",", key_.stride_d);
  }
  if (key_.ldb != (gemm_.transpose_b ? key_.k : key_.n)) add(" ldb", key_.ldb);
  return text + DescribeKind();
}

std::string Plan::DescribeKind() const {
  std::string text;
  if (gemm_.transpose_a) text += " a^T";
  if (gemm_.transpose_b) text += " b^T";
  if (gemm_.bias) text += " bias";
  if (gemm_.residual) text += " residual";
  if (gemm_.activation == Activation::kRelu) text += " relu";
  if (gemm_.activation == Activation::kGeluTanh) text += " gelu";
  if (key_.tf32) text += " tf32";
  if (!key_.workspace) text += " no workspace";
  const unsigned alignments[] = {key_.alignment_a, key_.alignment_b, key_.alignment_c, key_.alignment_d};
  if (*std::min_element(std::begin(alignments), std::end(alignments)) >= 16) return text;
  text += " aligned";  // to less than any algorithm asks for at most
  for (const unsigned bytes : alignments) text += " " + std::to_string(bytes);
  return text;
}

}  // namespace onnxopt::cuda
