"""A stand-in for libcuda.so.1 with one GPU that accepts every call: registering for CUDA can be tested without one.

FAKE_ARCH: of the GPU, 90 for sm_90. FAKE_FAILS: the one function that fails. FAKE_LOAD_ERROR: of loading a kernel.
"""

from __future__ import annotations

import pathlib
import struct
import subprocess

from tests.support import builds

SOURCE = r"""
#include <stdlib.h>
#include <string.h>
static int number(const char* name) { const char* text = getenv(name); return text ? atoi(text) : 0; }
static int answer(const char* function) {
  const char* failing = getenv("FAKE_FAILS");
  return failing && strcmp(failing, function) == 0 ? 999 : 0;
}
int cuInit(unsigned flags) { return answer("cuInit"); }
int cuDriverGetVersion(int* version) { *version = 12080; return 0; }
int cuGetErrorName(int error, const char** text) { *text = "CUDA_ERROR_FAKE"; return 0; }
int cuGetErrorString(int error, const char** text) { *text = "as the test asked"; return 0; }
int cuDeviceGetCount(int* count) { *count = 1; return answer("cuDeviceGetCount"); }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return answer("cuDeviceGet"); }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 75 ? number("FAKE_ARCH") / 10 : number("FAKE_ARCH") % 10;
  return answer("cuDeviceGetAttribute");
}
int cuDevicePrimaryCtxRetain(void** context, int device) { *context = (void*)8; return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
int cuCtxGetCurrent(void** context) { *context = 0; return 0; }
int cuCtxSetCurrent(void* context) { return 0; }
int cuCtxGetDevice(int* device) { *device = 0; return 0; }
int cuDeviceGetName(char* name, int size, int device) { strcpy(name, "Fake GPU"); return 0; }
int cuStreamCreate(void** stream, unsigned flags) { *stream = (void*)8; return 0; }
int cuStreamDestroy_v2(void* stream) { return 0; }
int cuStreamWaitEvent(void* stream, void* event, unsigned flags) { return 0; }
int cuStreamSynchronize(void* stream) { return 0; }
int cuStreamIsCapturing(void* stream, int* status) { *status = 0; return 0; }
int cuStreamBeginCapture_v2(void* stream, int mode) { return 0; }
int cuStreamEndCapture(void* stream, void** graph) { *graph = (void*)8; return 0; }
int cuGraphInstantiateWithFlags(void** executable, void* g, unsigned long long f) { *executable = (void*)8; return 0; }
int cuGraphLaunch(void* executable, void* stream) { return 0; }
int cuGraphDestroy(void* graph) { return 0; }
int cuGraphExecDestroy(void* executable) { return 0; }
int cuMemAlloc_v2(size_t* data, size_t bytes) { *data = 0; return 2; }
int cuMemFree_v2(size_t data) { return 0; }
int cuMemcpyDtoDAsync_v2(size_t to, size_t from, size_t bytes, void* stream) { return 0; }
int cuMemcpyDtoHAsync_v2(void* to, size_t from, size_t bytes, void* stream) { return 0; }
int cuMemsetD8Async(size_t to, unsigned char value, size_t bytes, void* stream) { return 0; }
int cuEventCreate(void** event, unsigned flags) { *event = (void*)8; return 0; }
int cuEventDestroy_v2(void* event) { return 0; }
int cuEventRecord(void* event, void* stream) { return 0; }
int cuEventSynchronize(void* event) { return 0; }
int cuEventElapsedTime(float* milliseconds, void* start, void* end) { *milliseconds = 1; return 0; }
int cuStreamGetCtx(void* stream, void** context) { *context = (void*)8; return 0; }
int cuLibraryLoadData(void** library, const void* c, void* a, void* b, unsigned n, void* o, void* v, unsigned m) {
  *library = (void*)8;
  return answer("cuLibraryLoadData");
}
int cuLibraryUnload(void* library) { return 0; }
int cuLibraryGetKernel(void** kernel, void* library, const char* name) { *kernel = (void*)8; return 0; }
int cuKernelGetFunction(void** function, void* kernel) { *function = (void*)8; return number("FAKE_LOAD_ERROR"); }
int cuKernelSetAttribute(int attribute, int value, void* kernel, int device) { return 0; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, void* f, int threads, size_t shared) { *n = 1; return 0; }
int cuOccupancyMaxActiveClusters(int* n, void* f, const void* config) { *n = 16; return 0; }
int cuLaunchKernelEx(const void* config, void* function, void** params, void** extra) { return 0; }
"""


def build() -> pathlib.Path:
    """A folder with libcuda.so.1; a process started with LD_LIBRARY_PATH there finds it."""

    def compile_into(folder: pathlib.Path) -> None:
        (folder / "cuda.c").write_text(SOURCE)
        command = ["cc", "-shared", "-fPIC", "-w", "-o", str(folder / "libcuda.so.1"), str(folder / "cuda.c")]
        subprocess.run(command, check=True)

    return builds.once("fake_driver", compile_into)


def fatbin(*images: tuple[int, bool] | tuple[int, bool, bool]) -> bytes:
    """A container of empty images: (arch, whether it is PTX, and whether it is for that arch alone) each."""
    body = b"".join(
        struct.pack("<HHIQIIHHIQQ", 1 if ptx else 2, 0x101, 64, 8, 0, 64, 0, 1, arch, 0, 0x100000 * any(specific))
        + bytes(16 + 8)
        for arch, ptx, *specific in images
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
