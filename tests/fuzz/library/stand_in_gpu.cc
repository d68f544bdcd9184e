#include "stand_in_gpu.h"

#include <cstdlib>
#include <cstring>
#include <vector>

namespace onnxopt::stand_in {

Launched launched{};

namespace {

using namespace cuda;  // NOLINT

constexpr Result kInvalidValue = 1;
constexpr int kVersion = 12080;

Failure failure;
int calls = 0;
bool failed = false;

// What the function of this name returns now.
Result Answer(const char* function) {
  if (failure.function != function || ++calls != failure.call) return kSuccess;
  failed = true;
  return failure.result;
}

template <typename T>
T Some() {
  return reinterpret_cast<T>(8);
}

int Attribute(int attribute) {
  switch (attribute) {
    case kMultiprocessorCount:
      return 132;
    case kComputeCapabilityMajor:
      return 9;
    case kComputeCapabilityMinor:
      return 0;
    case kMaxSharedMemoryPerBlock:
      return 232448;
    default:
      return 1;
  }
}

Result LaunchKernel(const LaunchConfig* config, DriverFunction, void** params, void**) {
  if (config->grid_x == 0 || config->block_x == 0 || config->block_x > 1024 || params == nullptr) return kInvalidValue;
  launched = {config->grid_x, config->block_x};
  return Answer("cuLaunchKernelEx");
}

void FillDevices(cuda::Driver* d) {
  d->cuInit = [](unsigned) { return Answer("cuInit"); };
  d->cuDriverGetVersion = [](int* version) { return *version = kVersion, Answer("cuDriverGetVersion"); };
  d->cuGetErrorName = [](Result, const char** text) { return *text = "CUDA_ERROR_OF_THE_TEST", kSuccess; };
  d->cuGetErrorString = [](Result, const char** text) { return *text = "as the test asked", kSuccess; };
  d->cuDeviceGetCount = [](int* count) { return *count = 1, Answer("cuDeviceGetCount"); };
  d->cuDeviceGet = [](Device* device, int) { return *device = 0, Answer("cuDeviceGet"); };
  d->cuDeviceGetAttribute = [](int* value, int attribute, Device) {
    return *value = Attribute(attribute), Answer("cuDeviceGetAttribute");
  };
  d->cuDevicePrimaryCtxRetain = [](cuda::Context* context, Device) {
    return *context = Some<cuda::Context>(), Answer("cuDevicePrimaryCtxRetain");
  };
  d->cuDevicePrimaryCtxRelease = [](Device) { return kSuccess; };
  d->cuCtxGetCurrent = [](cuda::Context* context) {
    return *context = Some<cuda::Context>(), Answer("cuCtxGetCurrent");
  };
  d->cuCtxSetCurrent = [](cuda::Context) { return Answer("cuCtxSetCurrent"); };
  d->cuCtxGetDevice = [](Device* device) { return *device = 0, Answer("cuCtxGetDevice"); };
  d->cuDeviceGetName = [](char* name, int, Device) {
    return std::strcpy(name, "NVIDIA H200"), Answer("cuDeviceGetName");
  };
}

void FillStreams(cuda::Driver* d) {
  d->cuStreamGetCtx = [](Stream, cuda::Context* context) {
    return *context = Some<cuda::Context>(), Answer("cuStreamGetCtx");
  };
  d->cuStreamCreate = [](Stream* stream, unsigned) { return *stream = Some<Stream>(), Answer("cuStreamCreate"); };
  d->cuStreamDestroy = [](Stream) { return kSuccess; };
  d->cuStreamWaitEvent = [](Stream, Event, unsigned) { return Answer("cuStreamWaitEvent"); };
  d->cuStreamSynchronize = [](Stream) { return Answer("cuStreamSynchronize"); };
  d->cuStreamIsCapturing = [](Stream, int* status) { return *status = 0, Answer("cuStreamIsCapturing"); };
  d->cuStreamBeginCapture = [](Stream, int) { return Answer("cuStreamBeginCapture"); };
  d->cuStreamEndCapture = [](Stream, Graph* graph) { return *graph = Some<Graph>(), Answer("cuStreamEndCapture"); };
  d->cuGraphInstantiate = [](GraphExecutable* executable, Graph, unsigned long long) {
    return *executable = Some<GraphExecutable>(), Answer("cuGraphInstantiate");
  };
  d->cuGraphLaunch = [](GraphExecutable, Stream) { return Answer("cuGraphLaunch"); };
  d->cuGraphDestroy = [](Graph) { return kSuccess; };
  d->cuGraphExecDestroy = [](GraphExecutable) { return kSuccess; };
  d->cuMemAlloc = [](std::uintptr_t* data, std::size_t) {  // so little that a sanitizer finds it where it is not freed
    const Result result = Answer("cuMemAlloc");
    *data = result == kSuccess ? reinterpret_cast<std::uintptr_t>(std::malloc(1)) : 0;
    return result;
  };
  d->cuMemFree = [](std::uintptr_t data) { return std::free(reinterpret_cast<void*>(data)), kSuccess; };
  d->cuMemcpyDtoDAsync = [](std::uintptr_t, std::uintptr_t, std::size_t, Stream) {
    return Answer("cuMemcpyDtoDAsync");
  };
  d->cuMemcpyDtoHAsync = [](void*, std::uintptr_t, std::size_t, Stream) { return Answer("cuMemcpyDtoHAsync"); };
  d->cuMemsetD8Async = [](std::uintptr_t, unsigned char, std::size_t, Stream) { return Answer("cuMemsetD8Async"); };
  d->cuEventCreate = [](Event* event, unsigned) { return *event = Some<Event>(), Answer("cuEventCreate"); };
  d->cuEventDestroy = [](Event) { return kSuccess; };
  d->cuEventRecord = [](Event, Stream) { return Answer("cuEventRecord"); };
  d->cuEventSynchronize = [](Event) { return Answer("cuEventSynchronize"); };
  d->cuEventElapsedTime = [](float* milliseconds, Event, Event) {
    return *milliseconds = 1, Answer("cuEventElapsedTime");
  };
}

void FillKernels(cuda::Driver* d) {
  d->cuLibraryLoadData = [](DriverLibrary* library, const void*, int*, void**, unsigned, int*, void**, unsigned) {
    return *library = Some<DriverLibrary>(), Answer("cuLibraryLoadData");
  };
  d->cuLibraryUnload = [](DriverLibrary) { return kSuccess; };
  d->cuLibraryGetKernel = [](DriverKernel* kernel, DriverLibrary, const char*) {
    return *kernel = Some<DriverKernel>(), Answer("cuLibraryGetKernel");
  };
  d->cuKernelGetFunction = [](DriverFunction* function, DriverKernel) {
    return *function = Some<DriverFunction>(), Answer("cuKernelGetFunction");
  };
  d->cuKernelSetAttribute = [](int, int, DriverKernel, Device) { return Answer("cuKernelSetAttribute"); };
  d->cuOccupancyMaxActiveBlocksPerMultiprocessor = [](int* blocks, DriverFunction, int, std::size_t) {
    return *blocks = 2, Answer("cuOccupancyMaxActiveBlocksPerMultiprocessor");
  };
  d->cuOccupancyMaxActiveClusters = [](int* clusters, DriverFunction, const LaunchConfig*) {
    return *clusters = 16, Answer("cuOccupancyMaxActiveClusters");
  };
  d->cuLaunchKernelEx = LaunchKernel;
}

cuda::Driver Make() {
  cuda::Driver d{};
  FillDevices(&d);
  FillStreams(&d);
  FillKernels(&d);
  d.early_launches = true;
  return d;
}

}  // namespace

void SetFailure(const Failure& wanted) {
  failure = wanted;
  calls = 0;
  failed = false;
}

bool HasFailed() { return failed; }

const std::vector<std::string>& DriverFunctions() {
  static const std::vector<std::string> names = {"cuDeviceGetCount",
                                                 "cuDeviceGet",
                                                 "cuDeviceGetAttribute",
                                                 "cuCtxGetCurrent",
                                                 "cuCtxGetDevice",
                                                 "cuDeviceGetName",
                                                 "cuStreamCreate",
                                                 "cuStreamIsCapturing",
                                                 "cuEventCreate",
                                                 "cuMemAlloc",
                                                 "cuMemcpyDtoDAsync",
                                                 "cuMemcpyDtoHAsync",
                                                 "cuStreamSynchronize",
                                                 "cuMemsetD8Async",
                                                 "cuLibraryLoadData",
                                                 "cuLibraryGetKernel",
                                                 "cuKernelGetFunction",
                                                 "cuKernelSetAttribute",
                                                 "cuOccupancyMaxActiveBlocksPerMultiprocessor",
                                                 "cuOccupancyMaxActiveClusters",
                                                 "cuLaunchKernelEx",
                                                 "cuStreamWaitEvent",
                                                 "cuStreamBeginCapture",
                                                 "cuStreamEndCapture",
                                                 "cuGraphInstantiate",
                                                 "cuGraphLaunch",
                                                 "cuEventRecord",
                                                 "cuEventSynchronize",
                                                 "cuEventElapsedTime"};
  return names;
}

const cuda::Driver& Driver() {
  static const cuda::Driver driver = Make();
  return driver;
}

}  // namespace onnxopt::stand_in
