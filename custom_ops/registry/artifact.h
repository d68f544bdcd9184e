// What this process offers to sessions: the kernel files beside the library, and their custom ops.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernel_file/kernel_file.h"
#include "registry/custom_op.h"
#include "registry/hidden_schema.h"

namespace onnxopt {

class Artifact {
 public:
  // Of kernels.json beside the library, and of those in the folders that it names. Reads them and looks for a GPU, the
  // first time; the result lives as long as the process. Throws Error if a file is damaged, every time it is asked.
  static const std::vector<Artifact>& All();

  // Makes sessions with these options run the kernels. Does nothing where the options have them already, also from
  // another copy of the library. Throws Error where they have other kernels in the domain.
  void Register(OrtSessionOptions* options) const;

 private:
  explicit Artifact(KernelFile file);
  void AddOps(const cuda::Library* library);
  // The ops of a kernel are added one after the other.
  void AddOp(const Kernel& kernel, const char* provider, const cuda::Library* library);

  std::unique_ptr<const KernelFile> file_;  // kernels, ops and the library of CUDA code refer to its parts
  std::unique_ptr<const cuda::Library> library_;
  std::vector<std::unique_ptr<HiddenSchema>> hidden_;  // one a kernel that has ops
  std::vector<std::unique_ptr<CustomOp>> ops_;
  OrtCustomOpDomain* domain_ = nullptr;  // nullptr where no kernel is worth running here
};

}  // namespace onnxopt
