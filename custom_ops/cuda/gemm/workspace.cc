#include "cuda/gemm/workspace.h"

#include <map>
#include <mutex>
#include <utility>

namespace onnxopt::cuda {

Workspace::Workspace(std::shared_ptr<const Allocator> allocator, std::size_t bytes)
    : allocator_(std::move(allocator)), bytes_(bytes), data_(allocator_->get()->Alloc(allocator_->get(), bytes)) {
  if (data_ == nullptr) throw Error("no memory for a workspace of " + std::to_string(bytes) + " bytes on the GPU");
}

Workspace::~Workspace() { allocator_->get()->Free(allocator_->get(), data_); }

std::shared_ptr<const Workspace> WorkspaceOf(Stream stream, const std::shared_ptr<const Allocator>& allocator,
                                             bool create, std::size_t bytes, Purpose purpose) {
  static std::mutex mutex;
  static auto* const known =
      new std::map<std::pair<Stream, Purpose>, std::weak_ptr<const Workspace>>;  // outlives every kernel
  const std::lock_guard<std::mutex> lock(mutex);
  std::weak_ptr<const Workspace>& entry = (*known)[{stream, purpose}];
  std::shared_ptr<const Workspace> workspace = entry.lock();
  if (workspace != nullptr && workspace->bytes() >= bytes) return workspace;
  if (!create) return nullptr;
  // Doubled, so that all that were outgrown take no more than the last one.
  std::size_t wanted = kWorkspaceBytes;
  while (wanted < bytes) wanted *= 2;
  workspace = std::make_shared<const Workspace>(allocator, wanted);
  entry = workspace;
  return workspace;
}

}  // namespace onnxopt::cuda
