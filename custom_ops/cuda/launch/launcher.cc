#include "cuda/launch/launcher.h"

#include <algorithm>

#include "cuda/launch/stopwatch.h"
#include "cuda/launch/stream.h"

namespace onnxopt::cuda {
namespace {

constexpr unsigned kUnaskedShared = 48 << 10;  // bytes that every kernel has
constexpr unsigned kMaxPortableCluster = 8;    // blocks; some GPUs have larger ones
constexpr int kFirstEarlyMajor = 9;  // compute capability from which kernels can wait for the one ahead of them
constexpr int kNameBytes = 256;

}  // namespace

std::string CallSize::text() const {
  const std::string count = std::to_string(elements);
  return columns == 0 ? count : count + " in rows of " + std::to_string(columns);
}

Launcher::Launcher(const Kernel& kernel, const Library& library)
    : kernel_(kernel), driver_(library.driver()), choices_(LaunchChoices::Get()) {
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
  static std::map<Device, DeviceTraits> gpus;
  Device device = 0;
  driver_.Check(driver_.cuCtxGetDevice(&device), "cannot ask for the GPU");
  const std::lock_guard<std::mutex> lock(mutex);
  const auto match = gpus.find(device);
  if (match != gpus.end()) return match->second;
  DeviceTraits traits{};
  int multiprocessors = 0;
  const char* const problem = "cannot ask for a GPU's traits";
  driver_.Check(driver_.cuDeviceGetAttribute(&traits.major, kComputeCapabilityMajor, device), problem);
  driver_.Check(driver_.cuDeviceGetAttribute(&multiprocessors, kMultiprocessorCount, device), problem);
  int shared = 0;
  driver_.Check(driver_.cuDeviceGetAttribute(&shared, kMaxSharedMemoryPerBlock, device), problem);
  traits.multiprocessors = static_cast<unsigned>(multiprocessors);
  traits.shared = static_cast<unsigned>(shared);
  char name[kNameBytes] = "";
  driver_.Check(driver_.cuDeviceGetName(name, kNameBytes, device), problem);
  traits.name = name;
  return gpus.emplace(device, traits).first->second;
}

std::size_t Launcher::Find(const std::string& symbol) const {
  std::size_t k = 0;
  while (k < variants_.size() && kernel_.variants[k].symbol != symbol) ++k;
  return k;
}

std::size_t Launcher::Measured(const CallSize& size, std::size_t rule, Stream stream, const Fits& fits,
                               const LaunchOf& launch) const {
  const std::string& gpu = device().name;
  const std::lock_guard<std::mutex> lock(choices_mutex_);
  const std::tuple key{gpu, size.elements, size.columns};
  auto chosen = chosen_.find(key);
  if (chosen == chosen_.end()) {
    const std::optional<MeasuredLaunch> measured = choices_.Find(gpu, kernel_.name, size.text());
    if (!measured && choices_.tunes() && !Measurable(stream)) return rule;  // another time
    const bool measures = !measured && choices_.tunes();
    const std::size_t best = measures   ? Measure(size, rule, stream, fits, launch)
                             : measured ? Find(measured->symbol)
                                        : rule;
    chosen = chosen_.emplace(key, best).first;
  }
  return chosen->second < variants_.size() && fits(chosen->second) ? chosen->second : rule;
}

// Measuring captures the stream, which the default stream cannot be, and allocates, which a capture forbids.
bool Launcher::Measurable(Stream stream) const {
  int capturing = 0;
  driver_.Check(driver_.cuStreamIsCapturing(stream, &capturing), "cannot ask whether the stream is capturing");
  return capturing == 0 && stream != nullptr;
}

std::size_t Launcher::Measure(const CallSize& size, std::size_t rule, Stream stream, const Fits& fits,
                              const LaunchOf& launch) const {
  std::vector<std::size_t> ways = {rule};
  for (std::size_t k = 0; k < variants_.size(); ++k) {
    if (k != rule && fits(k)) ways.push_back(k);
  }
  const Stopwatch stopwatch(driver_, stream, nullptr, kCareful);
  const auto [first, best] = stopwatch.Fastest(ways.size(), [&](std::size_t way) { launch(ways[way]); });
  const std::size_t chosen = ways[best.way];
  choices_.Add(device().name, kernel_.name, size.text(),
               {kernel_.variants[chosen].symbol, best.microseconds, first.microseconds});
  return chosen;
}

unsigned Launcher::Resident(std::size_t variant) const {
  Device device = 0;
  driver_.Check(driver_.cuCtxGetDevice(&device), "cannot ask for the GPU");
  const std::lock_guard<std::mutex> lock(resident_mutex_);
  const auto [entry, is_new] = resident_.try_emplace({device, variant}, 0);
  if (is_new || entry->second == 0) entry->second = AskResident(variant, device);
  return entry->second;
}

unsigned Launcher::AskResident(std::size_t variant, Device device) const {
  const Variant& entry = kernel_.variants[variant];
  const std::string problem = "cannot prepare kernel " + entry.symbol;
  const DriverKernel kernel = variants_[variant];
  const auto shared = static_cast<int>(entry.shared);
  driver_.Check(driver_.cuKernelSetAttribute(kMaxDynamicSharedMemory, shared, kernel, device), problem);
  if (entry.cluster > kMaxPortableCluster) {
    driver_.Check(driver_.cuKernelSetAttribute(kNonPortableClusterAllowed, 1, kernel, device), problem);
  }
  DriverFunction function = nullptr;
  driver_.Check(driver_.cuKernelGetFunction(&function, kernel), problem);
  int count = 0;
  if (entry.cluster == 1) {
    driver_.Check(driver_.cuOccupancyMaxActiveBlocksPerMultiprocessor(&count, function, static_cast<int>(entry.threads),
                                                                      entry.shared),
                  problem);
    count *= static_cast<int>(this->device().multiprocessors);
  } else {
    LaunchConfig config{entry.cluster, 1, 1, entry.threads, 1, 1, entry.shared, nullptr, nullptr, 0};
    driver_.Check(driver_.cuOccupancyMaxActiveClusters(&count, function, &config), problem);
  }
  return static_cast<unsigned>(std::max(count, 1));
}

void Launcher::Launch(std::size_t variant, unsigned blocks, unsigned char* params, Stream stream) const {
  void* pointers[] = {params};
  // The driver takes a CUkernel here and runs it in the stream's context (CUDA 12).
  const auto function = reinterpret_cast<DriverFunction>(variants_[variant]);
  const Variant& entry = kernel_.variants[variant];
  if (entry.shared > kUnaskedShared) Resident(variant);
  LaunchAttribute early{kProgrammaticStreamSerialization, {}, {1}};
  const bool may_be_early = entry.waits && driver_.early_launches && device().major >= kFirstEarlyMajor;
  const LaunchConfig config{blocks, 1, 1, entry.threads, 1, 1, entry.shared, stream, &early, may_be_early ? 1U : 0U};
  driver_.Check(driver_.cuLaunchKernelEx(&config, function, pointers, nullptr),
                "kernel " + entry.symbol + " did not launch");
}

}  // namespace onnxopt::cuda
