// A stand-in for libcuda.so.1 whose GPU is that of the emulation but for this: launches do nothing, and whatever is
// enqueued has run.
#define onnxoptEmulates replaced_onnxoptEmulates
#define cuLibraryGetKernel replaced_cuLibraryGetKernel
#define cuLaunchKernelEx replaced_cuLaunchKernelEx
#define cuStreamCreate replaced_cuStreamCreate
#define cuStreamWaitEvent replaced_cuStreamWaitEvent
#define cuEventCreate replaced_cuEventCreate
#define cuEventRecord replaced_cuEventRecord
#define cuEventSynchronize replaced_cuEventSynchronize
#include "driver.cc"
#undef onnxoptEmulates
#undef cuLibraryGetKernel
#undef cuLaunchKernelEx
#undef cuStreamCreate
#undef cuStreamWaitEvent
#undef cuEventCreate
#undef cuEventRecord
#undef cuEventSynchronize

extern "C" {
bool onnxoptEmulates(const char*) { return true; }
int cuLibraryGetKernel(void** kernel, void*, const char*) { return *kernel = some(), 0; }
int cuLaunchKernelEx(const void*, void*, void**, void**) { return 0; }
int cuStreamCreate(void** stream, unsigned) { return *stream = some(), 0; }
int cuStreamWaitEvent(void*, void*, unsigned) { return 0; }
int cuEventCreate(void** event, unsigned) { return *event = some(), 0; }
int cuEventRecord(void*, void*) { return 0; }
int cuEventSynchronize(void*) { return 0; }
}
