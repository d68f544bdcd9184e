// The OrtCustomOp of a fused node for one execution provider.
#pragma once

#include <string>

#include "registry/kinds.h"

namespace onnxopt {

// Referenced by ONNX Runtime as long as a session lives, so it lives as long as the process.
class CustomOp final : public OrtCustomOp {
 public:
  // provider: an execution provider's name, or nullptr for the CPU's. library: where its CUDA code lies, or nullptr for
  // an op that runs on the CPU.
  CustomOp(const Kernel& kernel, const char* provider, const cuda::Library* library);

 private:
  static const CustomOp& Self(const OrtCustomOp* op) { return *static_cast<const CustomOp*>(op); }
  void SetCallbacks();
  FusedKernel* Make(const OrtKernelInfo* info) const;

  const Kernel& kernel_;
  const Kind& kind_;
  const char* provider_;
  const cuda::Library* library_;
};

}  // namespace onnxopt
