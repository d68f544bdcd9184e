#include "cuda_kernel.h"

#include "cuda_variant.h"

namespace onnxopt::cuda {
namespace {

// "a[2, 3] b..." is not known here any more: counts and runs tell enough to see which shapes found no variant.
std::string Describe(const Kernel& kernel, const Domain& domain) {
  std::string text = std::to_string(domain.count) + " elements, inputs read along";
  for (std::size_t k = 0; k < kernel.program.accesses(); ++k) {
    text += " " + std::to_string(domain.access[k].runs);
  }
  return text + " runs of dims";
}

}  // namespace

CudaKernel::CudaKernel(const Kernel& kernel, const Library& library)
    : PointwiseKernel(kernel), driver_(library.driver()) {
  Context context = nullptr;
  driver_.Check(driver_.cuCtxGetCurrent(&context), "cannot ask for the CUDA context");
  for (const Variant& variant : kernel.variants) {
    variants_.push_back(library.Find(variant.symbol));
    if (context == nullptr) continue;
    // Loads the code now: under CUDA graph capture it would be too late.
    DriverFunction function = nullptr;
    driver_.Check(driver_.cuKernelGetFunction(&function, variants_.back()),
                  "kernel " + variant.symbol + " does not load on this GPU (set ONNXOPT_DISABLE=1 to run without)");
  }
}

void CudaKernel::Run(const Domain& domain, OrtKernelContext* ort_context) const {
  const std::size_t chosen = ChooseVariant(kernel(), domain);
  if (chosen == variants_.size()) throw Error("no variant fits: " + Describe(kernel(), domain));
  void* ort_stream = nullptr;
  Check(Ort().KernelContext_GetGPUComputeStream(ort_context, &ort_stream));
  const auto stream = static_cast<Stream>(ort_stream);
  Context current = nullptr;
  driver_.Check(driver_.cuCtxGetCurrent(&current), "cannot ask for the CUDA context");
  if (current == nullptr) {
    // A thread of ONNX Runtime that has not called CUDA yet.
    driver_.Check(driver_.cuStreamGetCtx(stream, &current), "cannot find the CUDA context of ONNX Runtime's stream");
    driver_.Check(driver_.cuCtxSetCurrent(current), "cannot enter the CUDA context");
  }
  const Variant& variant = kernel().variants[chosen];
  alignas(16) unsigned char block[kMaxParams];
  FillParams(kernel(), variant, domain, block);
  void* params[] = {block};
  // The driver takes a CUkernel here and runs it in the stream's context (CUDA 12).
  const auto function = reinterpret_cast<DriverFunction>(variants_[chosen]);
  driver_.Check(driver_.cuLaunchKernel(function, GridSize(variant, domain), 1, 1, variant.threads, 1, 1, 0, stream,
                                       params, nullptr),
                "kernel " + variant.symbol + " did not launch");
}

}  // namespace onnxopt::cuda
