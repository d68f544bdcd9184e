#include "cuda/gemm/handle.h"

#include <map>
#include <mutex>

namespace onnxopt::cuda {

cublaslt::Handle HandleOf(Context context, const cublaslt::Api& api) {
  static std::mutex mutex;
  static auto* const handles = new std::map<Context, cublaslt::Handle>;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto match = handles->find(context);
  if (match != handles->end()) return match->second;
  cublaslt::Handle handle = nullptr;
  api.Check(api.cublasLtCreate(&handle), "cuBLASLt does not start on this GPU");
  return handles->emplace(context, handle).first->second;
}

}  // namespace onnxopt::cuda
