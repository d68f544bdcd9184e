#include "registry/artifact.h"

#include <algorithm>
#include <cstdio>

#include "cuda/launch/library.h"
#include "kinds/kinds.h"
#include "support/library_path.h"

namespace onnxopt {
namespace {

constexpr char kDomain[] = "onnxopt";
// The second is the CUDA execution provider built as a plugin; ops for the first do not match it.
constexpr const char* kCudaProviders[] = {"CUDAExecutionProvider", "CudaPluginExecutionProvider"};

const Kind& KindOf(const Kernel& kernel) { return *FindKind(kernel.kind); }

// Whether a kernel needs the driver but none of the fatbin's code.
bool HasNoCode(const Kernel& kernel) { return KindOf(kernel).RunsWithoutFatbin(kernel); }

// An entry point of the fatbin: the first kernels may be of a kind without code of their own.
std::string AnySymbol(const KernelFile& file) {
  for (const Kernel& kernel : file.kernels) {
    if (!kernel.variants.empty()) return kernel.variants[0].symbol;
  }
  throw Error("no kernel has an entry point");
}

void Warn(const std::string& path, const std::string& problem) {
  std::fprintf(stderr, "onnxopt: warning: %s: %s\n", path.c_str(), problem.c_str());
}

}  // namespace

const Artifact& Artifact::Get() {
  static const Artifact* const artifact = new Artifact(BesideThisLibrary("kernels.json"));
  return *artifact;
}

Artifact::Artifact(const std::string& path) : file_(ReadKernelFile(path, FindKind)) {
  if (!file_ || file_->kernels.empty()) return;
  const bool codeless = std::any_of(file_->kernels.begin(), file_->kernels.end(), HasNoCode);
  const cuda::Driver* driver = file_->fatbin.empty() && !codeless ? nullptr : cuda::FindDriver();
  if (driver != nullptr) {
    std::string problem;
    try {
      library_ = std::make_unique<cuda::Library>(*driver, file_->fatbin);
      const bool needs_code = !file_->fatbin.empty() && driver->emulates == nullptr;
      if (needs_code && !library_->RunsHere(AnySymbol(*file_), &problem)) library_ = nullptr;
    } catch (const Error& e) {
      library_ = nullptr;
      problem = e.what();
    }
    if (library_ == nullptr) {
      Warn(path, problem + "; the model runs without onnxopt's kernels");
      return;
    }
  }
  AddOps(library_.get());
}

void Artifact::AddOps(const cuda::Library* library) {
  std::optional<std::string> problem;
  for (const Kernel& kernel : file_->kernels) {
    if (library != nullptr && library->driver().emulates != nullptr) {
      // Its CUDA code runs on the CPU, on tensors in the CPU's memory.
      const bool emulated = library->driver().emulates(kernel.name.c_str());
      if (emulated) ops_.push_back(std::make_unique<CustomOp>(kernel, nullptr, library));
      continue;
    }
    const bool gpu = library != nullptr && (HasNoCode(kernel) || !file_->fatbin.empty());
    if (!gpu && !kernel.cpu) continue;
    // One name serves every provider: where the CUDA op cannot be had, the CPU session inlines the function as well.
    if (const auto obstacle = gpu ? KindOf(kernel).Obstacle() : std::nullopt) {
      problem = obstacle;
      continue;
    }
    ops_.push_back(std::make_unique<CustomOp>(kernel, nullptr, nullptr));
    if (!gpu) continue;
    for (const char* provider : kCudaProviders) ops_.push_back(std::make_unique<CustomOp>(kernel, provider, library));
  }
  if (problem) Warn(file_->path, *problem);
  if (ops_.empty()) return;
  Check(Ort().CreateCustomOpDomain(kDomain, &domain_));
  for (const auto& op : ops_) Check(Ort().CustomOpDomain_Add(domain_, op.get()));
}

}  // namespace onnxopt
