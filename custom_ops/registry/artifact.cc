#include "registry/artifact.h"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <optional>
#include <utility>

#include "cuda/launch/library.h"
#include "registry/kinds.h"
#include "support/library_path.h"
#include "support/session_entry.h"

namespace onnxopt {
namespace {

constexpr char kFile[] = "kernels.json";
constexpr char kRegistered[] = "onnxopt.registered.";  // and a domain: the session entry with the file's digest
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

// The kernel files of the library: the one beside it, and those in the folders that it names.
std::vector<KernelFile> ReadAll() {
  std::vector<KernelFile> files;
  std::optional<KernelFile> first = ReadKernelFile(BesideThisLibrary(kFile), FindKind);
  if (!first) return files;
  files.push_back(std::move(*first));
  const std::vector<std::string> folders = files.front().folders;
  for (const std::string& folder : folders) {
    const std::string path = BesideThisLibrary(folder + "/" + kFile);
    std::optional<KernelFile> file = ReadKernelFile(path, FindKind);
    if (!file) throw Error(path + ": there is no such file; restore the folder or write it again with onnxopt");
    files.push_back(std::move(*file));
  }
  return files;
}

void Warn(const std::string& path, const std::string& problem) {
  std::fprintf(stderr, "onnxopt: warning: %s: %s\n", path.c_str(), problem.c_str());
}

}  // namespace

const std::vector<Artifact>& Artifact::All() {
  static const std::vector<Artifact>* const all = [] {
    auto artifacts = std::make_unique<std::vector<Artifact>>();
    for (KernelFile& file : ReadAll()) artifacts->push_back(Artifact(std::move(file)));
    return artifacts.release();
  }();
  return *all;
}

void Artifact::Register(OrtSessionOptions* options, const std::set<std::string>& left_out) const {
  OrtCustomOpDomain* domain = DomainWithout(left_out);
  if (domain == nullptr) return;
  const std::string entry = kRegistered + file_->domain;
  const std::optional<std::string> digest = SessionEntry(options, entry.c_str());
  if (digest == file_->digest) return;
  if (digest) {
    throw Error(file_->path + ": the session options have other kernels in the domain `" + file_->domain +
                "` already; take other session options for this model, or optimize it again");
  }
  Check(Ort().AddCustomOpDomain(options, domain));
  Check(Ort().AddSessionConfigEntry(options, entry.c_str(), file_->digest.c_str()));
}

Artifact::Artifact(KernelFile file) : file_(std::make_unique<const KernelFile>(std::move(file))) {
  if (file_->kernels.empty()) return;
  const std::string& path = file_->path;
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
  const int major = library != nullptr && library->driver().emulates == nullptr ? library->LeastMajor() : 0;
  for (const Kernel& kernel : file_->kernels) {
    if (library != nullptr && library->driver().emulates != nullptr) {
      // Its CUDA code runs on the CPU, on tensors in the CPU's memory.
      if (library->driver().emulates(kernel.name.c_str())) AddOp(kernel, nullptr, library);
      continue;
    }
    const bool gpu = library != nullptr && (HasNoCode(kernel) || !file_->fatbin.empty()) &&
                     KindOf(kernel).FirstMajor(kernel) <= major;
    if (const auto obstacle = gpu ? KindOf(kernel).Obstacle() : std::nullopt) {
      problem = obstacle;  // without a CPU op as well, which would move the node off the GPU
      continue;
    }
    // A session inlines the function where none of its providers has an op.
    for (const char* provider : kCudaProviders) {
      if (gpu) AddOp(kernel, provider, library);
    }
    if (kernel.cpu) AddOp(kernel, nullptr, nullptr);
  }
  if (problem) Warn(file_->path, *problem);
}

void Artifact::AddOp(const Kernel& kernel, const char* provider, const cuda::Library* library) {
  if (hidden_.empty() || hidden_.back()->name() != kernel.name) {
    hidden_.push_back(std::make_unique<HiddenSchema>(kernel.name));
    order_.emplace_back(&kernel, hidden_.back().get());
  }
  ops_.push_back(std::make_unique<CustomOp>(kernel, provider, library));
  order_.emplace_back(&kernel, ops_.back().get());
}

OrtCustomOpDomain* Artifact::DomainWithout(const std::set<std::string>& kinds) const {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = domains_.find(kinds);
  if (found != domains_.end()) return found->second;
  OrtCustomOpDomain* domain = nullptr;  // of this process: sessions refer to it
  for (const auto& [kernel, op] : order_) {
    if (kinds.count(kernel->kind) != 0) continue;
    if (domain == nullptr) Check(Ort().CreateCustomOpDomain(file_->domain.c_str(), &domain));
    Check(Ort().CustomOpDomain_Add(domain, op));
  }
  return domains_[kinds] = domain;
}

}  // namespace onnxopt
