// What this process offers to sessions: the kernel file beside the library, and its custom ops.
#pragma once

#include <memory>
#include <vector>

#include "kernel_file/kernel_file.h"
#include "registry/custom_op.h"

namespace onnxopt {

class Artifact {
 public:
  // Reads kernels.json beside the library and looks for a GPU, the first time; the result lives as long as the process.
  // Throws Error if the file is damaged, every time it is asked.
  static const Artifact& Get();

  // The domain `onnxopt` with an op for every kernel that is worth running here, or nullptr if there is none.
  OrtCustomOpDomain* domain() const { return domain_; }

 private:
  explicit Artifact(const std::string& path);
  void AddOps(const cuda::Library* library);

  std::optional<KernelFile> file_;
  std::unique_ptr<const cuda::Library> library_;
  std::vector<std::unique_ptr<CustomOp>> ops_;
  OrtCustomOpDomain* domain_ = nullptr;
};

}  // namespace onnxopt
