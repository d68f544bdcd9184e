#include "cuda/gemm/workspace.h"

#include <map>
#include <mutex>

namespace onnxopt::cuda {

Workspace::Workspace(std::shared_ptr<const Allocator> allocator)
    : allocator_(std::move(allocator)), data_(allocator_->get()->Alloc(allocator_->get(), kWorkspaceBytes)) {
  if (data_ == nullptr) {
    throw Error("no memory for a workspace of " + std::to_string(kWorkspaceBytes) + " bytes on the GPU");
  }
}

Workspace::~Workspace() { allocator_->get()->Free(allocator_->get(), data_); }

std::shared_ptr<const Workspace> WorkspaceOf(Stream stream, const std::shared_ptr<const Allocator>& allocator,
                                             bool create) {
  static std::mutex mutex;
  static auto* const known = new std::map<Stream, std::weak_ptr<const Workspace>>;  // outlives every kernel
  const std::lock_guard<std::mutex> lock(mutex);
  std::weak_ptr<const Workspace>& entry = (*known)[stream];
  std::shared_ptr<const Workspace> workspace = entry.lock();
  if (workspace == nullptr && create) {
    workspace = std::make_shared<const Workspace>(allocator);
    entry = workspace;
  }
  return workspace;
}

}  // namespace onnxopt::cuda
