// A kind of kernels: everything that is told apart by it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "call/fused_kernel.h"
#include "kernel_file/kind_reader.h"
#include "support/ort.h"

namespace onnxopt {

namespace cuda {
class Library;
}

// One object a kind, listed in kinds.cc.
class Kind : public KindReader {
 public:
  // Called where the kind has CPU kernels and kernels.json says that this one pays.
  virtual std::unique_ptr<FusedKernel> MakeCpu(const Kernel& /*kernel*/) const { return nullptr; }

  // library: where the kernel's CUDA code lies. info: of the node. Not called where the kind has an obstacle.
  virtual std::unique_ptr<FusedKernel> MakeCuda(const Kernel& kernel, const cuda::Library& library,
                                                const OrtKernelInfo* info) const = 0;

  // Why no kernel of this kind runs on this machine's GPU, and what follows; nothing where all of them do.
  virtual std::optional<std::string> Obstacle() const { return std::nullopt; }

  // Whether a kernel runs on a GPU without code of its own in the fatbin.
  virtual bool RunsWithoutFatbin(const Kernel& /*kernel*/) const { return false; }

  // Whether a kernel reads an element of an input that has output 0's shape before it writes that element, and nothing
  // of it afterwards.
  virtual bool MayRunInPlace(const Kernel& /*kernel*/) const { return false; }
};

}  // namespace onnxopt
