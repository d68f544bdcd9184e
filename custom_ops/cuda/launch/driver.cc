#include "cuda/launch/driver.h"

#include <dlfcn.h>

#include "support/error.h"
#include "support/portability.h"

namespace onnxopt::cuda {
namespace {

constexpr int kOldestDriver = 12000;           // cuLibraryLoadData and launching a CUkernel came with CUDA 12.0
constexpr int kEarlyLaunchesInGraphs = 12030;  // programmatic dependencies as edges of a graph

template <typename Function>
bool Load(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

const Driver* Open() {
  // Never closed: the driver must outlive every kernel, and ONNX Runtime has it open anyway.
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  static Driver d;
  const bool complete =
      Load(library, "cuInit", &d.cuInit) && Load(library, "cuDriverGetVersion", &d.cuDriverGetVersion) &&
      Load(library, "cuGetErrorName", &d.cuGetErrorName) && Load(library, "cuGetErrorString", &d.cuGetErrorString) &&
      Load(library, "cuDeviceGetCount", &d.cuDeviceGetCount) && Load(library, "cuDeviceGet", &d.cuDeviceGet) &&
      Load(library, "cuDeviceGetAttribute", &d.cuDeviceGetAttribute) &&
      Load(library, "cuDevicePrimaryCtxRetain", &d.cuDevicePrimaryCtxRetain) &&
      Load(library, "cuDevicePrimaryCtxRelease_v2", &d.cuDevicePrimaryCtxRelease) &&
      Load(library, "cuCtxGetCurrent", &d.cuCtxGetCurrent) && Load(library, "cuCtxSetCurrent", &d.cuCtxSetCurrent) &&
      Load(library, "cuCtxGetDevice", &d.cuCtxGetDevice) && Load(library, "cuDeviceGetName", &d.cuDeviceGetName) &&
      Load(library, "cuStreamGetCtx", &d.cuStreamGetCtx) && Load(library, "cuStreamCreate", &d.cuStreamCreate) &&
      Load(library, "cuStreamDestroy_v2", &d.cuStreamDestroy) &&
      Load(library, "cuStreamWaitEvent", &d.cuStreamWaitEvent) &&
      Load(library, "cuStreamSynchronize", &d.cuStreamSynchronize) &&
      Load(library, "cuStreamIsCapturing", &d.cuStreamIsCapturing) &&
      Load(library, "cuStreamBeginCapture_v2", &d.cuStreamBeginCapture) &&
      Load(library, "cuStreamEndCapture", &d.cuStreamEndCapture) &&
      Load(library, "cuGraphInstantiateWithFlags", &d.cuGraphInstantiate) &&
      Load(library, "cuGraphLaunch", &d.cuGraphLaunch) && Load(library, "cuGraphDestroy", &d.cuGraphDestroy) &&
      Load(library, "cuGraphExecDestroy", &d.cuGraphExecDestroy) && Load(library, "cuMemAlloc_v2", &d.cuMemAlloc) &&
      Load(library, "cuMemFree_v2", &d.cuMemFree) && Load(library, "cuMemcpyDtoDAsync_v2", &d.cuMemcpyDtoDAsync) &&
      Load(library, "cuMemcpyDtoHAsync_v2", &d.cuMemcpyDtoHAsync) &&
      Load(library, "cuMemsetD8Async", &d.cuMemsetD8Async) && Load(library, "cuEventCreate", &d.cuEventCreate) &&
      Load(library, "cuEventDestroy_v2", &d.cuEventDestroy) && Load(library, "cuEventRecord", &d.cuEventRecord) &&
      Load(library, "cuEventSynchronize", &d.cuEventSynchronize) &&
      Load(library, "cuEventElapsedTime", &d.cuEventElapsedTime) &&
      Load(library, "cuLibraryLoadData", &d.cuLibraryLoadData) &&
      Load(library, "cuLibraryUnload", &d.cuLibraryUnload) &&
      Load(library, "cuLibraryGetKernel", &d.cuLibraryGetKernel) &&
      Load(library, "cuKernelGetFunction", &d.cuKernelGetFunction) &&
      Load(library, "cuKernelSetAttribute", &d.cuKernelSetAttribute) &&
      Load(library, "cuOccupancyMaxActiveBlocksPerMultiprocessor", &d.cuOccupancyMaxActiveBlocksPerMultiprocessor) &&
      Load(library, "cuOccupancyMaxActiveClusters", &d.cuOccupancyMaxActiveClusters) &&
      Load(library, "cuLaunchKernelEx", &d.cuLaunchKernelEx);
  if (!complete || d.cuInit(0) != kSuccess) return nullptr;
  Load(library, "onnxoptEmulates", &d.emulates);
  Load(library, "cuTensorMapEncodeTiled", &d.cuTensorMapEncodeTiled);
  int version = 0;
  int devices = 0;
  if (d.cuDriverGetVersion(&version) != kSuccess || version < kOldestDriver) return nullptr;
  if (d.cuDeviceGetCount(&devices) != kSuccess || devices == 0) return nullptr;
  d.early_launches = version >= kEarlyLaunchesInGraphs;
  return &d;
}

}  // namespace

std::string Driver::Describe(Result result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuGetErrorName(result, &name) != kSuccess || name == nullptr) return "CUDA error " + std::to_string(result);
  if (cuGetErrorString(result, &text) != kSuccess || text == nullptr) return name;
  return std::string(name) + ": " + text;
}

void Driver::Check(Result result, const std::string& what) const {
  if (result != kSuccess) throw Error(what + ": " + Describe(result));
}

const Driver* FindDriver() {
  static const Driver* const driver = Open();
  return driver;
}

std::string NameOfGpu(const Driver& driver) {
  constexpr int kBytes = 256;
  Device device = 0;
  char name[kBytes] = "";
  driver.Check(driver.cuCtxGetDevice(&device), "cannot ask for the GPU");
  driver.Check(driver.cuDeviceGetName(name, kBytes, device), "cannot ask for the GPU's name");
  return name;
}

}  // namespace onnxopt::cuda
