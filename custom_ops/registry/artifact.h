// What this process offers to sessions: the kernel files beside the library, and their custom ops.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
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

  // Makes sessions with these options run the kernels, but those of the kinds to leave out. Does nothing where the
  // options have the domain already, also from another copy of the library. Throws Error where they have other kernels
  // in it.
  void Register(OrtSessionOptions* options, const std::set<std::string>& left_out) const;

 private:
  explicit Artifact(KernelFile file);
  void AddOps(const cuda::Library* library);
  // The ops of a kernel are added one after the other.
  void AddOp(const Kernel& kernel, const char* provider, const cuda::Library* library);
  // nullptr where no kernel is left that is worth running here.
  OrtCustomOpDomain* DomainWithout(const std::set<std::string>& kinds) const;

  std::unique_ptr<const KernelFile> file_;  // kernels, ops and the library of CUDA code refer to its parts
  std::unique_ptr<const cuda::Library> library_;
  std::vector<std::unique_ptr<HiddenSchema>> hidden_;  // one a kernel that has ops
  std::vector<std::unique_ptr<CustomOp>> ops_;
  std::vector<std::pair<const Kernel*, const OrtCustomOp*>> order_;      // in which a domain takes hidden_ and ops_
  mutable std::map<std::set<std::string>, OrtCustomOpDomain*> domains_;  // by the kinds that are left out
};

}  // namespace onnxopt
