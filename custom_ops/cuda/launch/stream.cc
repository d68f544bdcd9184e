#include "cuda/launch/stream.h"

namespace onnxopt::cuda {

StreamOfCall EnterStream(const Driver& driver, OrtKernelContext* call) {
  void* ort_stream = nullptr;
  Check(Ort().KernelContext_GetGPUComputeStream(call, &ort_stream));
  const auto stream = static_cast<Stream>(ort_stream);
  Context current = nullptr;
  driver.Check(driver.cuCtxGetCurrent(&current), "cannot ask for the CUDA context");
  if (current == nullptr) {
    // A thread of ONNX Runtime that has not called CUDA yet.
    driver.Check(driver.cuStreamGetCtx(stream, &current), "cannot find the CUDA context of ONNX Runtime's stream");
    driver.Check(driver.cuCtxSetCurrent(current), "cannot enter the CUDA context");
  }
  return {stream, current};
}

}  // namespace onnxopt::cuda
