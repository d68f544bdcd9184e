#include "kinds.h"

#include "cpu_kernel.h"
#include "cuda_kernel.h"
#include "shape_inference.h"

namespace onnxopt {

std::unique_ptr<FusedKernel> MakeKernel(const Kernel& kernel, const cuda::Library* library) {
  switch (kernel.kind) {
    case Kind::kPointwise:
      if (library != nullptr) return std::make_unique<cuda::CudaKernel>(kernel, *library);
      return std::make_unique<CpuKernel>(kernel);
  }
  throw Error("a kernel of no known kind");
}

void InferShapes(const Kernel& kernel, OrtShapeInferContext* context) {
  switch (kernel.kind) {
    case Kind::kPointwise:
      return InferShapes(kernel.program, context);
  }
  throw Error("a kernel of no known kind");
}

}  // namespace onnxopt
