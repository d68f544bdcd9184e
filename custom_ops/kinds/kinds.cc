#include "kinds/kinds.h"

#include "call/dims.h"
#include "call/gemm_shapes.h"
#include "call/rowwise_shapes.h"
#include "cpu/attention.h"
#include "cpu/gemm.h"
#include "cpu/pointwise.h"
#include "cpu/rowwise.h"
#include "cpu/scan.h"
#include "cuda/attention.h"
#include "cuda/gemm/cublaslt.h"
#include "cuda/gemm/gemm.h"
#include "cuda/pointwise.h"
#include "cuda/rowwise.h"
#include "cuda/scan.h"

namespace onnxopt {

std::unique_ptr<FusedKernel> MakeKernel(const Kernel& kernel, const cuda::Library* library, const OrtKernelInfo* info) {
  switch (kernel.kind) {
    case Kind::kPointwise:
      if (library != nullptr) return std::make_unique<cuda::CudaKernel>(kernel, *library);
      return std::make_unique<CpuKernel>(kernel);
    case Kind::kRowwise:
      if (library != nullptr) return std::make_unique<cuda::RowCudaKernel>(kernel, *library, info);
      return std::make_unique<RowCpuKernel>(kernel);
    case Kind::kGemm:
      if (library != nullptr) return std::make_unique<cuda::GemmCudaKernel>(kernel, *library, info);
      return std::make_unique<GemmCpuKernel>(kernel);
    case Kind::kAttention:
      if (library != nullptr) return std::make_unique<cuda::TokenAttentionCudaKernel>(kernel, *library, info);
      return std::make_unique<TokenAttentionCpuKernel>(kernel);
    case Kind::kScan:
      if (library != nullptr) return std::make_unique<cuda::ScanCudaKernel>(kernel, *library, info);
      return std::make_unique<ScanCpuKernel>(kernel);
  }
  throw Error("a kernel of no known kind");
}

bool RunsOnGpu(const Kernel& kernel, std::string* problem) {
  if (kernel.kind != Kind::kGemm || cublaslt::Expected()) return true;
  *problem = "no libcublasLt.so.12 or .13 is found, which ONNX Runtime's CUDA provider needs as well";
  return false;
}

void InferShapes(const Kernel& kernel, OrtShapeInferContext* context) {
  switch (kernel.kind) {
    case Kind::kPointwise:
      return InferShapes(kernel.program, context);
    case Kind::kRowwise:
    case Kind::kScan:
      return InferShapes(kernel.rows, context);
    case Kind::kGemm:
      return InferShapes(kernel.gemm, context);
    case Kind::kAttention:
      return InferShapes(kernel.attention, context);
  }
  throw Error("a kernel of no known kind");
}

}  // namespace onnxopt
