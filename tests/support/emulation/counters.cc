// Counters of several streams on a driver that only counts memory, driven by test_counters.py:
//   counters <step>...
// A step is STREAM:COUNT, STREAM:COUNT:captured, or STREAM:COUNT:full where there is no memory. Prints for each which
// memory its counters lie in, counted from 1, or 0; and at the end, what is not given back.
#include "cuda/launch/counters.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

namespace onnxopt::cuda {
namespace {

std::map<std::uintptr_t, int> memory;  // which is not given back
int made = 0;
int cleared = 0;
bool capturing = false;
bool full = false;
Context current = nullptr;

Driver Counting() {
  Driver d{};
  d.cuGetErrorName = [](Result, const char**) { return 1; };
  d.cuCtxGetCurrent = [](Context* context) { return *context = current, kSuccess; };
  d.cuCtxSetCurrent = [](Context context) { return current = context, kSuccess; };
  d.cuStreamIsCapturing = [](Stream, int* status) { return *status = capturing ? 1 : 0, kSuccess; };
  d.cuMemAlloc = [](std::uintptr_t* data, std::size_t bytes) {
    if (full) return 2;
    *data = reinterpret_cast<std::uintptr_t>(std::malloc(bytes));
    memory[*data] = ++made;
    return kSuccess;
  };
  d.cuMemFree = [](std::uintptr_t data) {
    if (current == nullptr) return 201;  // CUDA_ERROR_INVALID_CONTEXT
    memory.erase(data);
    return std::free(reinterpret_cast<void*>(data)), kSuccess;
  };
  d.cuMemsetD8Async = [](std::uintptr_t to, unsigned char value, std::size_t bytes, Stream) {
    ++cleared;
    return std::memset(reinterpret_cast<void*>(to), value, bytes), kSuccess;
  };
  return d;
}

void Run(const Counters& counters, const std::string& step) {
  char* end = nullptr;
  const auto stream = reinterpret_cast<Stream>(std::strtoull(step.c_str(), &end, 10));
  const std::size_t count = std::strtoull(end + 1, &end, 10);
  capturing = std::strcmp(end, ":captured") == 0;
  full = std::strcmp(end, ":full") == 0;
  unsigned* const found = counters.Of(stream, count);
  for (std::size_t k = 0; found != nullptr && k < count; ++k) {
    if (found[k] != 0) std::printf("not 0 ");
  }
  std::printf("%d ", found == nullptr ? 0 : memory[reinterpret_cast<std::uintptr_t>(found)]);
}

}  // namespace
}  // namespace onnxopt::cuda

int main(int count, char** arguments) {
  using namespace onnxopt::cuda;
  const Driver driver = Counting();
  current = reinterpret_cast<Context>(8);
  {
    const Counters counters(driver);
    for (int k = 1; k < count; ++k) Run(counters, arguments[k]);
    std::printf("cleared %d", cleared);
    current = nullptr;  // as on a thread that has not called CUDA
  }
  std::printf(" left %zu%s\n", memory.size(), current == nullptr ? "" : " entered");
  return 0;
}
