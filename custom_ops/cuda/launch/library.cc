#include "cuda/launch/library.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kernel_file/fatbin.h"
#include "support/error.h"

namespace onnxopt::cuda {

Library::Library(const Driver& driver, const std::vector<char>& fatbin) : driver_(driver), fatbin_(fatbin) {
  if (fatbin.empty()) return;
  const Result result = driver.cuLibraryLoadData(&library_, fatbin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  driver.Check(result, "cannot load kernels.fatbin");
}

Library::~Library() {
  if (library_ != nullptr) driver_.cuLibraryUnload(library_);
}

DriverKernel Library::Find(const std::string& symbol) const {
  DriverKernel kernel = nullptr;
  driver_.Check(driver_.cuLibraryGetKernel(&kernel, library_, symbol.c_str()), "kernels.fatbin: kernel " + symbol);
  return kernel;
}

Result Library::LoadsOn(Device device, DriverKernel kernel) const {
  Context previous = nullptr;
  Context primary = nullptr;
  Result result = driver_.cuCtxGetCurrent(&previous);
  if (result != kSuccess) return result;
  result = driver_.cuDevicePrimaryCtxRetain(&primary, device);
  if (result != kSuccess) return result;
  result = driver_.cuCtxSetCurrent(primary);
  if (result == kSuccess) {
    DriverFunction function = nullptr;
    result = driver_.cuKernelGetFunction(&function, kernel);
    driver_.cuCtxSetCurrent(previous);
  }
  driver_.cuDevicePrimaryCtxRelease(device);
  return result;
}

bool Library::HasCodeForAlone(unsigned arch) const {
  const char* const from_ptx = std::getenv("CUDA_FORCE_PTX_JIT");
  if (from_ptx != nullptr && std::strcmp(from_ptx, "0") != 0) return false;  // PTX in fatbins is for all later GPUs
  return HasMachineCodeForAlone(fatbin_, arch);
}

std::vector<Library::Gpu> Library::Gpus() const {
  int devices = 0;
  driver_.Check(driver_.cuDeviceGetCount(&devices), "cannot count the GPUs");
  std::vector<Gpu> gpus(static_cast<std::size_t>(devices));
  for (int ordinal = 0; ordinal < devices; ++ordinal) {
    auto& [device, major, minor] = gpus[static_cast<std::size_t>(ordinal)];
    driver_.Check(driver_.cuDeviceGet(&device, ordinal), "cannot open GPU " + std::to_string(ordinal));
    driver_.Check(driver_.cuDeviceGetAttribute(&major, kComputeCapabilityMajor, device), "cannot ask for a GPU's arch");
    driver_.Check(driver_.cuDeviceGetAttribute(&minor, kComputeCapabilityMinor, device), "cannot ask for a GPU's arch");
  }
  return gpus;
}

int Library::LeastMajor() const {
  const std::vector<Gpu> gpus = Gpus();
  const auto older = [](const Gpu& a, const Gpu& b) { return a.major < b.major; };
  return gpus.empty() ? 0 : std::min_element(gpus.begin(), gpus.end(), older)->major;
}

bool Library::RunsHere(const std::string& symbol, std::string* problem) const {
  const std::vector<Image> images = Images(fatbin_);
  for (const auto& [device, major, minor] : Gpus()) {
    bool cubin = false;
    bool maybe = images.empty();
    for (const Image& image : images) {
      if (!image.RunsOn(static_cast<unsigned>(major), static_cast<unsigned>(minor))) continue;
      (image.ptx ? maybe : cubin) = true;
    }
    if (cubin) return true;
    const std::string arch = "sm_" + std::to_string(10 * major + minor);
    if (!maybe) {
      *problem = "kernels.fatbin has no code for this GPU (" + arch + ")";
      continue;
    }
    // Only PTX fits. Whether the driver knows its version shows when it compiles it, which takes a context.
    const Result result = LoadsOn(device, Find(symbol));
    if (result == kSuccess) return true;
    *problem = "kernels.fatbin does not load on this GPU (" + arch + "): " + driver_.Describe(result);
  }
  return false;
}

}  // namespace onnxopt::cuda
