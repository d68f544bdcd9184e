#include "cuda/convolution/cudnn.h"

#include <dlfcn.h>

#include <mutex>

#include "cuda/launch/cublaslt.h"
#include "support/library_path.h"
#include "support/ort.h"
#include "support/portability.h"

namespace onnxopt::cudnn {
namespace {

constexpr char kLibrary[] = "libcudnn.so.9";
// Where pip puts it, seen from ONNX Runtime's library: what onnxruntime.preload_dlls() opens.
constexpr char kPipPath[] = "/../../nvidia/cudnn/lib/libcudnn.so.9";
constexpr std::size_t kOldest = 90000;
constexpr std::size_t kCudaMajor = 1000;  // in cudnnGetCudartVersion

template <typename Function>
bool Load(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

// Never closed: kernels may outlive every session.
void* Open() {
  if (void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) return library;
  if (void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL)) return library;
  const std::string folder = FolderOf(reinterpret_cast<const void*>(Ort().CreateStatus));  // ONNX Runtime's
  return folder.empty() ? nullptr : dlopen((folder + kPipPath).c_str(), RTLD_NOW | RTLD_LOCAL);
}

bool Complete(void* library, Api* api) {
#define ONNXOPT_LOAD(name) Load(library, #name, &api->name)
  return ONNXOPT_LOAD(cudnnGetVersion) && ONNXOPT_LOAD(cudnnGetCudartVersion) && ONNXOPT_LOAD(cudnnGetErrorString) &&
         ONNXOPT_LOAD(cudnnCreate) && ONNXOPT_LOAD(cudnnSetStream) && ONNXOPT_LOAD(cudnnBackendCreateDescriptor) &&
         ONNXOPT_LOAD(cudnnBackendDestroyDescriptor) && ONNXOPT_LOAD(cudnnBackendFinalize) &&
         ONNXOPT_LOAD(cudnnBackendSetAttribute) && ONNXOPT_LOAD(cudnnBackendGetAttribute) &&
         ONNXOPT_LOAD(cudnnBackendExecute) && ONNXOPT_LOAD(cudnnCreateTensorDescriptor) &&
         ONNXOPT_LOAD(cudnnDestroyTensorDescriptor) && ONNXOPT_LOAD(cudnnSetTensor4dDescriptorEx) &&
         ONNXOPT_LOAD(cudnnAddTensor) && ONNXOPT_LOAD(cudnnCreateActivationDescriptor) &&
         ONNXOPT_LOAD(cudnnDestroyActivationDescriptor) && ONNXOPT_LOAD(cudnnSetActivationDescriptor) &&
         ONNXOPT_LOAD(cudnnActivationForward) && ONNXOPT_LOAD(cudnnSetTensor) &&
         ONNXOPT_LOAD(cudnnCreateOpTensorDescriptor) && ONNXOPT_LOAD(cudnnDestroyOpTensorDescriptor) &&
         ONNXOPT_LOAD(cudnnSetOpTensorDescriptor) && ONNXOPT_LOAD(cudnnOpTensor);
#undef ONNXOPT_LOAD
}

}  // namespace

void Api::Check(Status status, const std::string& what) const {
  if (status == kSuccess) return;
  const char* name = cudnnGetErrorString(status);
  throw Refused(what + ": " + (name == nullptr ? "cuDNN" : std::string(name)) + " (" + std::to_string(status) + ")");
}

const Api* Find() {
  static std::mutex mutex;
  static Api api;
  static bool is_complete = false;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!is_complete) {
    void* library = Open();
    is_complete = library != nullptr && Complete(library, &api) && api.cudnnGetVersion() >= kOldest;
  }
  return is_complete ? &api : nullptr;
}

std::optional<std::string> Obstacle() {
  const std::string follows = "; convolutions run as ONNX Runtime runs them";
  if (Find() == nullptr) return std::string("no ") + kLibrary + " is found" + follows;
  if (!cublaslt::Expected()) return std::string(kLibrary) + " needs a libcublasLt, and none is found" + follows;
  return std::nullopt;
}

void RequireCublaslt(const Api& api) {
  const std::string name = "libcublasLt.so." + std::to_string(api.cudnnGetCudartVersion() / kCudaMajor);
  if (dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD) != nullptr) return;
  if (dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr) return;
  throw Error("cuDNN " + std::to_string(api.cudnnGetVersion()) + " needs " + name +
              ", which is not in this process; install the cuDNN of ONNX Runtime's CUDA version, or set "
              "ONNXOPT_DISABLE=1 to run without onnxopt's kernels");
}

}  // namespace onnxopt::cudnn
