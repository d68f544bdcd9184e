#include "cuda/launch/provider_options.h"

namespace onnxopt::cuda {
namespace {

// Of ONNX Runtime's cuda_resource.h: asked for of a kernel's context, it is the provider option use_tf32.
constexpr int kResourceVersion = 3;
constexpr int kUseTf32 = 10011;

}  // namespace

bool UsesTf32(const OrtKernelContext* context) {
  void* value = nullptr;
  OrtStatus* status = Ort().KernelContext_GetResource(context, kResourceVersion, kUseTf32, &value);
  if (status == nullptr) return value != nullptr;
  Ort().ReleaseStatus(status);
  return false;
}

}  // namespace onnxopt::cuda
