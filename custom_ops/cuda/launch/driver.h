// The few functions of the CUDA driver API that launching needs, loaded at run time: no CUDA headers, no link to CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace onnxopt::cuda {

using Result = int;
using Device = int;
using Context = struct ContextTag*;
using Stream = struct StreamTag*;
using Event = struct EventTag*;
using Graph = struct GraphTag*;
using GraphExecutable = struct GraphExecutableTag*;
using DriverLibrary = struct LibraryTag*;
using DriverKernel = struct KernelTag*;
using DriverFunction = struct FunctionTag*;

constexpr Result kSuccess = 0;
constexpr int kMultiprocessorCount = 16;
constexpr int kComputeCapabilityMajor = 75;
constexpr int kComputeCapabilityMinor = 76;
constexpr int kMaxSharedMemoryPerBlock = 97;    // that a kernel can be given if it asks
constexpr int kMaxDynamicSharedMemory = 8;      // attribute of a kernel
constexpr int kNonPortableClusterAllowed = 14;  // attribute of a kernel

// CUlaunchAttribute. The kernel may be launched before the one ahead of it in the stream has ended.
struct LaunchAttribute {
  int id;
  char padding[4];
  union {
    int allowed;
    char size[64];
  } value;
};
static_assert(sizeof(LaunchAttribute) == 72);

constexpr int kProgrammaticStreamSerialization = 6;

// CUlaunchConfig
struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned count;
};

// Names, signatures and values are those of cuda.h (CUDA 12 and 13).
struct Driver {
  Result (*cuInit)(unsigned flags);
  Result (*cuDriverGetVersion)(int* version);
  Result (*cuGetErrorName)(Result error, const char** text);
  Result (*cuGetErrorString)(Result error, const char** text);
  Result (*cuDeviceGetCount)(int* count);
  Result (*cuDeviceGet)(Device* device, int ordinal);
  Result (*cuDeviceGetAttribute)(int* value, int attribute, Device device);
  Result (*cuDevicePrimaryCtxRetain)(Context* context, Device device);
  Result (*cuDevicePrimaryCtxRelease)(Device device);
  Result (*cuCtxGetCurrent)(Context* context);
  Result (*cuCtxSetCurrent)(Context context);
  Result (*cuCtxGetDevice)(Device* device);
  Result (*cuDeviceGetName)(char* name, int size, Device device);
  Result (*cuStreamGetCtx)(Stream stream, Context* context);
  Result (*cuStreamCreate)(Stream* stream, unsigned flags);
  Result (*cuStreamDestroy)(Stream stream);
  Result (*cuStreamWaitEvent)(Stream stream, Event event, unsigned flags);
  Result (*cuStreamSynchronize)(Stream stream);
  Result (*cuStreamIsCapturing)(Stream stream, int* status);
  Result (*cuStreamBeginCapture)(Stream stream, int mode);
  Result (*cuStreamEndCapture)(Stream stream, Graph* graph);
  Result (*cuGraphInstantiate)(GraphExecutable* executable, Graph graph, unsigned long long flags);
  Result (*cuGraphLaunch)(GraphExecutable executable, Stream stream);
  Result (*cuGraphDestroy)(Graph graph);
  Result (*cuGraphExecDestroy)(GraphExecutable executable);
  Result (*cuMemAlloc)(std::uintptr_t* data, std::size_t bytes);
  Result (*cuMemFree)(std::uintptr_t data);
  Result (*cuMemcpyDtoDAsync)(std::uintptr_t to, std::uintptr_t from, std::size_t bytes, Stream stream);
  Result (*cuMemcpyDtoHAsync)(void* to, std::uintptr_t from, std::size_t bytes, Stream stream);
  Result (*cuMemsetD8Async)(std::uintptr_t to, unsigned char value, std::size_t bytes, Stream stream);
  Result (*cuEventCreate)(Event* event, unsigned flags);
  Result (*cuEventDestroy)(Event event);
  Result (*cuEventRecord)(Event event, Stream stream);
  Result (*cuEventSynchronize)(Event event);
  Result (*cuEventElapsedTime)(float* milliseconds, Event start, Event end);
  Result (*cuLibraryLoadData)(DriverLibrary* library, const void* code, int* jit_options, void** jit_values,
                              unsigned jit_count, int* options, void** values, unsigned count);
  Result (*cuLibraryUnload)(DriverLibrary library);
  Result (*cuLibraryGetKernel)(DriverKernel* kernel, DriverLibrary library, const char* name);
  Result (*cuKernelGetFunction)(DriverFunction* function, DriverKernel kernel);
  Result (*cuKernelSetAttribute)(int attribute, int value, DriverKernel kernel, Device device);
  Result (*cuOccupancyMaxActiveBlocksPerMultiprocessor)(int* blocks, DriverFunction function, int threads,
                                                        std::size_t shared_bytes);
  Result (*cuOccupancyMaxActiveClusters)(int* clusters, DriverFunction function, const LaunchConfig* config);
  Result (*cuLaunchKernelEx)(const LaunchConfig* config, DriverFunction function, void** params, void** extra);
  // Describes a matrix for the hardware of compute capability 9.0 and later that copies tiles; nullptr where there is
  // none.
  Result (*cuTensorMapEncodeTiled)(void* map, int dtype, unsigned rank, void* data, const std::uint64_t* dims,
                                   const std::uint64_t* strides, const unsigned* tile, const unsigned* steps,
                                   int interleave, int swizzle, int promotion, int fill);
  // Whether the stand-in for the driver (onnxopt/verification/emulation) has a kernel's code; nullptr in a real driver.
  bool (*emulates)(const char* kernel);
  bool early_launches;  // whether graphs can hold launches that do not wait for the kernel ahead of them

  // Throws Error "<what>: <name of the CUDA error>: <its description>" where `result` is an error.
  void Check(Result result, const std::string& what) const;
  std::string Describe(Result result) const;
};

// The driver, or nullptr where there is none, it is older than CUDA 12, or it finds no GPU. Looked up once per process.
const Driver* FindDriver();

// The driver's name of the GPU whose context is current.
std::string NameOfGpu(const Driver& driver);

}  // namespace onnxopt::cuda
