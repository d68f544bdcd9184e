// A kernel of three entry points on a GPU that only keeps time, driven by test_launch_choices.py:
//   launches <microseconds of each> <which fit, as 110> <elements> [capturing]
// prints the entry point that is launched, and how often any was.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/launch/launcher.h"

namespace onnxopt::cuda {
namespace {

double now = 0;  // microseconds
double taken[3];
int launched = 0;
bool capturing = false;
std::vector<double> captured;

Driver Clock() {
  Driver d{};
  d.cuCtxGetCurrent = [](Context* context) { return *context = nullptr, kSuccess; };
  d.cuCtxGetDevice = [](Device* device) { return *device = 0, kSuccess; };
  d.cuDeviceGetAttribute = [](int* value, int, Device) { return *value = 9, kSuccess; };
  d.cuDeviceGetName = [](char* name, int, Device) { return std::strcpy(name, std::getenv("FAKE_GPU")), kSuccess; };
  d.cuStreamIsCapturing = [](Stream, int* status) { return *status = capturing ? 1 : 0, kSuccess; };
  d.cuStreamBeginCapture = [](Stream, int) { return capturing = true, captured.clear(), kSuccess; };
  d.cuStreamEndCapture = [](Stream, Graph* graph) {
    capturing = false;
    *graph = reinterpret_cast<Graph>(new std::vector<double>(captured));
    return kSuccess;
  };
  d.cuGraphInstantiate = [](GraphExecutable* executable, Graph graph, unsigned long long) {
    return *executable = reinterpret_cast<GraphExecutable>(graph), kSuccess;
  };
  d.cuGraphLaunch = [](GraphExecutable executable, Stream) {
    for (const double time : *reinterpret_cast<std::vector<double>*>(executable)) now += time;
    return kSuccess;
  };
  d.cuGraphDestroy = [](Graph) { return kSuccess; };
  d.cuGraphExecDestroy = [](GraphExecutable) { return kSuccess; };
  d.cuEventCreate = [](Event* event, unsigned) { return *event = reinterpret_cast<Event>(new double), kSuccess; };
  d.cuEventDestroy = [](Event event) { return delete reinterpret_cast<double*>(event), kSuccess; };
  d.cuEventRecord = [](Event event, Stream) { return *reinterpret_cast<double*>(event) = now, kSuccess; };
  d.cuEventSynchronize = [](Event) { return kSuccess; };
  d.cuEventElapsedTime = [](float* milliseconds, Event start, Event end) {
    const double us = *reinterpret_cast<double*>(end) - *reinterpret_cast<double*>(start);
    return *milliseconds = static_cast<float>(us / 1000), kSuccess;
  };
  d.cuLibraryLoadData = [](DriverLibrary* library, const void*, int*, void**, unsigned, int*, void**, unsigned) {
    return *library = reinterpret_cast<DriverLibrary>(8), kSuccess;
  };
  d.cuLibraryUnload = [](DriverLibrary) { return kSuccess; };
  d.cuLibraryGetKernel = [](DriverKernel* kernel, DriverLibrary, const char* name) {
    return *kernel = reinterpret_cast<DriverKernel>(taken + (name[0] - 'a')), kSuccess;
  };
  d.cuLaunchKernelEx = [](const LaunchConfig*, DriverFunction function, void**, void**) {
    const double time = *reinterpret_cast<const double*>(function);
    ++launched;
    if (capturing) {
      captured.push_back(time);
    } else {
      now += time;
    }
    return kSuccess;
  };
  return d;
}

void Run(const std::string& fitting, std::uint64_t elements) {
  const Driver driver = Clock();
  const std::vector<char> fatbin(1);
  const Library library(driver, fatbin);
  Kernel kernel;
  kernel.name = "AddGelu_3f2a9c1e";
  for (const char* symbol : {"a", "b", "c"}) kernel.variants.push_back({symbol, "F", 32, 8, 1, 128});
  const Launcher launcher(kernel, library);
  std::size_t last = 0;
  unsigned char params[1] = {};
  const auto fits = [&](std::size_t k) { return fitting[k] == '1'; };
  const auto launch = [&](std::size_t k) { launcher.Launch(last = k, 1, params, reinterpret_cast<Stream>(8)); };
  for (int call = 0; call < 2; ++call) {  // the second one has nothing to measure
    const int before = launched;
    launch(launcher.Choose({elements, 0}, 0, reinterpret_cast<Stream>(8), fits, launch));
    std::printf("%s %d\n", kernel.variants[last].symbol.c_str(), launched - before);
  }
}

}  // namespace
}  // namespace onnxopt::cuda

int main(int count, char** arguments) {
  using namespace onnxopt;
  for (int k = 0; k < 3; ++k) cuda::taken[k] = std::atof(arguments[1 + k]);
  cuda::capturing = count > 6;
  try {
    cuda::Run(arguments[4], std::strtoull(arguments[5], nullptr, 10));
  } catch (const Error& e) {
    std::printf("error: %s\n", e.what());
    return 1;
  }
  return 0;
}
