// What ONNX Runtime calls for a fused node, whatever its kind.
#pragma once

#include <optional>
#include <string>

#include "kernel_file/kernel.h"
#include "support/ort.h"

namespace onnxopt {

// Compute may be called by several threads at once.
class FusedKernel {
 public:
  explicit FusedKernel(const Kernel& kernel) : kernel_(kernel) {}
  FusedKernel(const FusedKernel&) = delete;
  FusedKernel& operator=(const FusedKernel&) = delete;
  virtual ~FusedKernel() = default;

  // Computes one fused node: allocates its outputs and fills them. Throws Error.
  virtual void Compute(OrtKernelContext* context) const = 0;

  const Kernel& kernel() const { return kernel_; }

  // What registry/kind.h asks a kind's kernels for; those that answer otherwise have members of their own.
  static std::optional<std::string> Obstacle() { return std::nullopt; }
  static bool RunsWithoutFatbin(const Kernel& /*kernel*/) { return false; }
  static bool MayRunInPlace(const Kernel& /*kernel*/) { return false; }
  static int FirstMajor(const Kernel& /*kernel*/) { return 0; }

 private:
  const Kernel& kernel_;
};

}  // namespace onnxopt
