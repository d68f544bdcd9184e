// A stand-in for libcuda.so.1 whose one GPU, of compute capability 8.0 (or 9.0, where ONNXOPT_EMULATION_MAJOR is 9, as
// tests of kernels without clusters of blocks ask for), runs entry points on the CPU. The folder that
// ONNXOPT_EMULATION names has their code: for each kernel a shared library NAME.so with a function
// `onnxopt_launch_<symbol>` for each entry point. The symbols that were launched are appended to its file `launched`.
// Where ONNXOPT_EMULATION_CAPTURES is set, streams say that they are being captured, and run what they are given.
//
// It is compiled with each artifact that is emulated, so it does without the headers of <string>, <vector> and <mutex>.
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kNotFound = 500;      // CUDA_ERROR_NOT_FOUND
constexpr int kNotSupported = 801;  // CUDA_ERROR_NOT_SUPPORTED
constexpr int kMultiprocessorCount = 16;
constexpr int kMajor = 75;
constexpr int kMinor = 76;
constexpr int kMaxSharedMemory = 97;

constexpr int kMostKernels = 4096;

struct Entry {
  char* symbol;
  void (*launch)(unsigned blocks, unsigned threads, const void* params);
  bool noted;
};

// The start of cuda.h's CUlaunchConfig.
struct Config {
  unsigned grid[3];
  unsigned block[3];
};

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
void* opened[kMostKernels];  // the kernels' libraries
int opened_count = 0;

struct Lock {
  Lock() { pthread_mutex_lock(&mutex); }
  ~Lock() { pthread_mutex_unlock(&mutex); }
};

struct Path {
  Path(const char* name, const char* suffix) {
    const char* folder = std::getenv("ONNXOPT_EMULATION");
    std::snprintf(text, sizeof(text), "%s/%s%s", folder != nullptr ? folder : ".", name, suffix);
  }
  char text[PATH_MAX];
};

void note(Entry& entry) {
  if (entry.noted) return;
  entry.noted = true;
  if (std::FILE* file = std::fopen(Path("launched", "").text, "a")) {
    std::fprintf(file, "%s\n", entry.symbol);
    std::fclose(file);
  }
}

void* some() { return reinterpret_cast<void*>(8); }

}  // namespace

extern "C" {
// Called by the library that onnxopt ships, for every kernel before any of its entry points is looked up.
bool onnxoptEmulates(const char* kernel) {
  void* found = dlopen(Path(kernel, ".so").text, RTLD_NOW | RTLD_LOCAL);
  const Lock lock;
  if (found == nullptr || opened_count == kMostKernels) return false;
  opened[opened_count++] = found;
  return true;
}

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) { return *version = 12000, 0; }
int cuGetErrorName(int error, const char** text) {
  return *text = error == kNotFound ? "CUDA_ERROR_NOT_FOUND" : "CUDA_ERROR_NOT_SUPPORTED", 0;
}
int cuGetErrorString(int error, const char** text) {
  return *text = error == kNotFound ? "the entry point has no code" : "this is not emulated", 0;
}
int cuDeviceGetCount(int* count) { return *count = 1, 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case kMajor:
      return *value = std::getenv("ONNXOPT_EMULATION_MAJOR") != nullptr
                          ? std::atoi(std::getenv("ONNXOPT_EMULATION_MAJOR"))
                          : 8,
             0;
    case kMinor:
      return *value = 0, 0;
    case kMultiprocessorCount:
      return *value = 108, 0;
    case kMaxSharedMemory:
      return *value = 163 << 10, 0;
    default:
      return kNotSupported;
  }
}
int cuDevicePrimaryCtxRetain(void** context, int) { return *context = some(), 0; }
int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
int cuCtxGetCurrent(void** context) { return *context = some(), 0; }
int cuCtxSetCurrent(void*) { return 0; }
int cuCtxGetDevice(int* device) { return *device = 0, 0; }
int cuDeviceGetName(char* name, int size, int) {
  return std::snprintf(name, static_cast<std::size_t>(size), "emulated"), 0;
}
int cuStreamGetCtx(void*, void** context) { return *context = some(), 0; }
int cuStreamCreate(void**, unsigned) { return kNotSupported; }
int cuStreamDestroy_v2(void*) { return 0; }
int cuStreamWaitEvent(void*, void*, unsigned) { return kNotSupported; }
int cuStreamSynchronize(void*) { return 0; }
int cuStreamIsCapturing(void*, int* status) {
  return *status = std::getenv("ONNXOPT_EMULATION_CAPTURES") != nullptr ? 1 : 0, 0;
}
int cuStreamBeginCapture_v2(void*, int) { return kNotSupported; }
int cuStreamEndCapture(void*, void**) { return kNotSupported; }
int cuGraphInstantiateWithFlags(void**, void*, unsigned long long) { return kNotSupported; }
int cuGraphLaunch(void*, void*) { return kNotSupported; }
int cuGraphDestroy(void*) { return 0; }
int cuGraphExecDestroy(void*) { return 0; }
int cuMemAlloc_v2(std::size_t* data, std::size_t bytes) {
  return *data = reinterpret_cast<std::size_t>(std::malloc(bytes)), 0;
}
int cuMemFree_v2(std::size_t data) { return std::free(reinterpret_cast<void*>(data)), 0; }
int cuMemcpyDtoDAsync_v2(std::size_t to, std::size_t from, std::size_t bytes, void*) {
  std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return 0;
}
int cuMemcpyDtoHAsync_v2(void* to, std::size_t from, std::size_t bytes, void*) {
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return 0;
}
int cuMemsetD8Async(std::size_t to, unsigned char value, std::size_t bytes, void*) {
  std::memset(reinterpret_cast<void*>(to), value, bytes);
  return 0;
}
int cuEventCreate(void**, unsigned) { return kNotSupported; }
int cuEventDestroy_v2(void*) { return 0; }
int cuEventRecord(void*, void*) { return kNotSupported; }
int cuEventSynchronize(void*) { return kNotSupported; }
int cuEventElapsedTime(float*, void*, void*) { return kNotSupported; }
int cuLibraryLoadData(void** library, const void*, void*, void*, unsigned, void*, void*, unsigned) {
  return *library = some(), 0;
}
int cuLibraryUnload(void*) { return 0; }
int cuLibraryGetKernel(void** kernel, void*, const char* symbol) {
  char name[4096];
  std::snprintf(name, sizeof(name), "onnxopt_launch_%s", symbol);
  const Lock lock;
  for (int k = 0; k < opened_count; ++k) {
    if (void* found = dlsym(opened[k], name)) {
      // Kept as long as the process lives, as a driver's handles are.
      auto* entry = static_cast<Entry*>(std::malloc(sizeof(Entry)));
      *entry = {strdup(symbol), reinterpret_cast<void (*)(unsigned, unsigned, const void*)>(found), false};
      return *kernel = entry, 0;
    }
  }
  return kNotFound;
}
int cuKernelGetFunction(void** function, void* kernel) { return *function = kernel, 0; }
int cuKernelSetAttribute(int, int, void*, int) { return 0; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int, std::size_t) { return *blocks = 1, 0; }
int cuOccupancyMaxActiveClusters(int*, void*, const void*) { return kNotSupported; }
int cuLaunchKernelEx(const void* config, void* function, void** params, void**) {
  const auto& shape = *static_cast<const Config*>(config);
  const Lock lock;  // the emulated threads are the process's
  auto& entry = *static_cast<Entry*>(function);
  note(entry);
  entry.launch(shape.grid[0], shape.block[0], params[0]);
  return 0;
}
}
