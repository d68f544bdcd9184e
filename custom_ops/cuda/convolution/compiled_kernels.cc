#include "cuda/convolution/compiled_kernels.h"

#include <map>
#include <memory>

#include "support/user_cache.h"

namespace onnxopt::cuda {
namespace {

using cudnn::Descriptor;
using cudnn::Name;
using cudnn::Type;

const UserCache& Kept() {
  static const auto* const kept = new UserCache("plans", "onnxopt cuDNN kernels 1");
  return *kept;
}

}  // namespace

CompiledKernels& CompiledKernels::Of(const cudnn::Api& api, Context context, const std::string& device) {
  static std::mutex mutex;
  static auto* const known = new std::map<Context, std::unique_ptr<CompiledKernels>>;  // plans refer to them
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<CompiledKernels>& entry = (*known)[context];
  if (entry == nullptr) {
    entry = std::make_unique<CompiledKernels>(api, "kernels of any shape; " + device + "; cuDNN " +
                                                       std::to_string(api.cudnnGetVersion()) + " of CUDA " +
                                                       std::to_string(api.cudnnGetCudartVersion()));
  }
  return *entry;
}

bool CompiledKernels::Finalize(const ConvolutionGraph& graph, Descriptor* plan) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!kernels_) kernels_ = Made(graph);
  plan->Set(Name::kPlanKernelCache, *kernels_);
  const bool taken = plan->TryFinalize();
  if (taken) Keep();
  return taken;
}

// Those of earlier processes, or none yet. The first graph stands for all.
Descriptor CompiledKernels::Made(const ConvolutionGraph& graph) const {
  if (const std::optional<std::string> text = Kept().Read(key_)) {
    try {
      Descriptor kernels(api_, cudnn::kKernelCache);
      kernels.SetText(Name::kCacheJson, *text);
      kernels.Finalize("cuDNN does not take kernels that were kept");
      return kernels;
    } catch (const cudnn::Refused&) {  // NOLINT(bugprone-empty-catch): they are compiled anew
    }
  }
  Descriptor kernels(api_, cudnn::kKernelCache);
  kernels.Set(Name::kCacheGraph, graph.graph);
  kernels.Finalize("cuDNN keeps no kernels");
  return kernels;
}

// Writes the kernels to the user's cache where there are new ones.
void CompiledKernels::Keep() {
  try {
    const std::size_t bytes = kernels_->Count(Name::kCacheJson, Type::kChar);
    if (bytes == bytes_) return;
    Kept().Write(key_, kernels_->Text(Name::kCacheJson));
    bytes_ = bytes;
  } catch (const cudnn::Refused&) {  // NOLINT(bugprone-empty-catch): later processes compile them again
  }
}

}  // namespace onnxopt::cuda
