#include "cuda/launch/cublaslt.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <mutex>

#include "support/library_path.h"
#include "support/ort.h"
#include "support/portability.h"

namespace onnxopt::cublaslt {
namespace {

constexpr const char* kNames[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
constexpr const char* kProviders[] = {"/libonnxruntime_providers_cuda.so", "/libonnxruntime_providers_cuda_plugin.so"};

template <typename Function>
bool Load(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

// Never closed: kernels may outlive every session.
void* Open(int mode) {
  for (const char* name : kNames) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL | mode)) return library;
  }
  return nullptr;
}

// What is loaded already comes before what the loader would find: the process should hold one cuBLASLt.
void* Open() {
  void* library = Open(RTLD_NOLOAD);
  return library != nullptr ? library : Open(0);
}

bool Complete(void* library, Api* api) {
#define ONNXOPT_LOAD(name) Load(library, #name, &api->name)
  return ONNXOPT_LOAD(cublasLtCreate) && ONNXOPT_LOAD(cublasLtDestroy) && ONNXOPT_LOAD(cublasLtGetVersion) &&
         ONNXOPT_LOAD(cublasLtGetStatusName) && ONNXOPT_LOAD(cublasLtMatmulDescCreate) &&
         ONNXOPT_LOAD(cublasLtMatmulDescDestroy) && ONNXOPT_LOAD(cublasLtMatmulDescSetAttribute) &&
         ONNXOPT_LOAD(cublasLtMatrixLayoutCreate) && ONNXOPT_LOAD(cublasLtMatrixLayoutDestroy) &&
         ONNXOPT_LOAD(cublasLtMatrixLayoutSetAttribute) && ONNXOPT_LOAD(cublasLtMatmulPreferenceCreate) &&
         ONNXOPT_LOAD(cublasLtMatmulPreferenceDestroy) && ONNXOPT_LOAD(cublasLtMatmulPreferenceSetAttribute) &&
         ONNXOPT_LOAD(cublasLtMatmulAlgoGetHeuristic) && ONNXOPT_LOAD(cublasLtMatmulAlgoCheck) &&
         ONNXOPT_LOAD(cublasLtMatmul);
#undef ONNXOPT_LOAD
}

}  // namespace

void Api::Check(Status status, const std::string& what) const {
  if (status == kSuccess) return;
  const char* name = cublasLtGetStatusName(status);
  const std::string text = what + ": " + (name == nullptr ? "cuBLAS status " + std::to_string(status) : name);
  if (status == kInvalidValue || status == kArchMismatch || status == kNotSupported) throw Refusal(text);
  throw Error(text);
}

const Api* Find() {
  static std::mutex mutex;
  static Api api;
  static bool is_complete = false;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!is_complete) {
    void* library = Open();
    is_complete = library != nullptr && Complete(library, &api);
  }
  return is_complete ? &api : nullptr;
}

bool Expected() {
  if (Open(RTLD_NOLOAD) != nullptr) return true;
  const std::string folder = FolderOf(reinterpret_cast<const void*>(Ort().CreateStatus));  // ONNX Runtime's
  const auto lies_there = [&](const char* provider) { return access((folder + provider).c_str(), F_OK) == 0; };
  if (!folder.empty() && std::any_of(std::begin(kProviders), std::end(kProviders), lies_there)) return true;
  return Find() != nullptr;
}

}  // namespace onnxopt::cublaslt
