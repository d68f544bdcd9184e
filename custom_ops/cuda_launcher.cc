#include "cuda_launcher.h"

#include <map>
#include <mutex>

#include "cuda_stream.h"

namespace onnxopt::cuda {
namespace {

constexpr int kFirstEarlyMajor = 9;  // compute capability from which kernels can wait for the one ahead of them

}  // namespace

Launcher::Launcher(const Kernel& kernel, const Library& library) : kernel_(kernel), driver_(library.driver()) {
  Context context = nullptr;
  driver_.Check(driver_.cuCtxGetCurrent(&context), "cannot ask for the CUDA context");
  for (const Variant& variant : kernel.variants) {
    variants_.push_back(library.Find(variant.symbol));
    if (context == nullptr) continue;
    DriverFunction function = nullptr;
    driver_.Check(driver_.cuKernelGetFunction(&function, variants_.back()),
                  "kernel " + variant.symbol + " does not load on this GPU (set ONNXOPT_DISABLE=1 to run without)");
  }
}

Stream Launcher::Enter(OrtKernelContext* context) const { return EnterStream(driver_, context).stream; }

const DeviceTraits& Launcher::device() const {
  static std::mutex mutex;
  static std::map<Device, DeviceTraits> known;
  Device device = 0;
  driver_.Check(driver_.cuCtxGetDevice(&device), "cannot ask for the GPU");
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.find(device);
  if (found != known.end()) return found->second;
  DeviceTraits traits{};
  int multiprocessors = 0;
  const char* const problem = "cannot ask for a GPU's traits";
  driver_.Check(driver_.cuDeviceGetAttribute(&traits.major, kComputeCapabilityMajor, device), problem);
  driver_.Check(driver_.cuDeviceGetAttribute(&multiprocessors, kMultiprocessorCount, device), problem);
  traits.multiprocessors = static_cast<unsigned>(multiprocessors);
  return known.emplace(device, traits).first->second;
}

void Launcher::Launch(std::size_t variant, unsigned blocks, unsigned char* params, Stream stream) const {
  void* pointers[] = {params};
  // The driver takes a CUkernel here and runs it in the stream's context (CUDA 12).
  const auto function = reinterpret_cast<DriverFunction>(variants_[variant]);
  const Variant& entry = kernel_.variants[variant];
  LaunchAttribute early{kProgrammaticStreamSerialization, {}, {1}};
  const bool may_be_early = entry.waits && driver_.early_launches && device().major >= kFirstEarlyMajor;
  const LaunchConfig config{blocks, 1, 1, entry.threads, 1, 1, 0, stream, &early, may_be_early ? 1U : 0U};
  driver_.Check(driver_.cuLaunchKernelEx(&config, function, pointers, nullptr),
                "kernel " + entry.symbol + " did not launch");
}

}  // namespace onnxopt::cuda
