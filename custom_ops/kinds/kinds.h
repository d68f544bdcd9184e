// The one place that tells the kinds of fused nodes apart.
#pragma once

#include <memory>

#include "call/fused_kernel.h"

namespace onnxopt {

namespace cuda {
class Library;
}

// library: where the kernel's CUDA code lies, or nullptr for a kernel that runs on the CPU. info: of the node.
std::unique_ptr<FusedKernel> MakeKernel(const Kernel& kernel, const cuda::Library* library, const OrtKernelInfo* info);

// Whether a kernel of this kind can run on this machine's GPU. Where not, `problem` says why.
bool RunsOnGpu(const Kernel& kernel, std::string* problem);

// Sets the dtype and shape of every output that can be told. Throws Error where the node has another number of inputs.
void InferShapes(const Kernel& kernel, OrtShapeInferContext* context);

}  // namespace onnxopt
