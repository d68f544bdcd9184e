// Runs on the GPU what supplies an entry point for a call and its launches: one Compute for all such kinds.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "call/fused_kernel.h"
#include "call/generated/calls.h"
#include "cuda/launch/launcher.h"
#include "cuda/launch/provider_options.h"
#include "cuda/launch/scratch.h"

namespace onnxopt::cuda {

constexpr unsigned kHopper = 90;  // its architecture

// What the choice of an entry point and its launches depend on. major: of the compute capability. shared: bytes of
// shared memory that a block can have. resident: blocks of the entry point that run at once, 1 where its kind does not
// ask. tf32: whether float32 products may round their operands. warpgroups: whether entry points of these run.
struct CoreGpu {
  int major;
  unsigned multiprocessors;
  unsigned shared;
  unsigned resident = 1;
  bool tf32 = false;
  bool warpgroups = false;
};

// One launch of a call. entry: of its entry point, from the chosen one on. passes: launches of the call. scratch: bytes
// that all of these share.
template <typename ParamsType>
struct CoreLaunch {
  using Params = ParamsType;
  Params params;
  unsigned blocks;
  std::size_t entry = 0;
  std::uint64_t passes = 1;
  std::size_t scratch = 0;
};

// What a kind supplies, free of ONNX Runtime and of the driver. It derives from this, has
//
//     static std::optional<Launch> LaunchOf(const Meaning&, const Variant&, const Call&, const CoreGpu&, pass);
//
// which is nothing where the entry point does not fit, and replaces what follows where it differs. Calls are not empty.
// Beside it, OpenCall(meaning, context) binds a call, whose y is null where there is nothing to compute.
template <typename Kind, typename MeaningType, typename CallType, typename LaunchType>
struct Core {
  using Meaning = MeaningType;
  using Call = CallType;
  using Launch = LaunchType;

  static constexpr bool kAsksResident = false;
  static constexpr bool kHasWarpgroups = false;

  static bool HasFloat32Products(const Meaning& /*meaning*/) { return false; }
  static int FirstMajor(const Meaning& /*meaning*/) { return 0; }

  // Whether a call may run an entry point, whatever is preferred.
  static bool Fits(const Meaning& meaning, const Variant& variant, const Call& call, const CoreGpu& gpu) {
    return Kind::LaunchOf(meaning, variant, call, gpu, 0).has_value();
  }

  // The entry point to run, the first that fits; variants.size() where none does.
  static std::size_t Choose(const Meaning& meaning, const std::vector<Variant>& variants, const Call& call,
                            const CoreGpu& gpu) {
    const auto fits = [&](const Variant& variant) { return Kind::Fits(meaning, variant, call, gpu); };
    return static_cast<std::size_t>(std::find_if(variants.begin(), variants.end(), fits) - variants.begin());
  }

  static CallSize SizeOf(const Meaning& /*meaning*/, const Call& call) {
    return {static_cast<std::uint64_t>(call.elements()), static_cast<std::uint64_t>(call.out_width)};
  }

  // As an error says it.
  static std::string Describe(const Meaning& /*meaning*/, const Call& call) {
    return std::to_string(call.batch) + " images of " + std::to_string(call.height) + " x " +
           std::to_string(call.width) + " with a result of " + std::to_string(call.channels) + " channels";
  }

  static void SetScratch(void* /*memory*/, typename Launch::Params* /*params*/) {}
};

// The entry points of a meaning: those of the launcher's kernel from `first` on.
struct CoreEntries {
  const std::vector<Variant>& variants;
  std::size_t first;
  const Launcher& launcher;
};

inline CoreGpu GpuOf(const Launcher& launcher) {
  const DeviceTraits& device = launcher.device();
  return {device.major, device.multiprocessors, device.shared};
}

// Launches the entry point for a call that is not empty. prepare: completes a launch. Throws Error where none fits.
template <typename Kind, typename Prepare>
void RunCore(const typename Kind::Meaning& meaning, const CoreEntries& entries, const typename Kind::Call& call,
             const CoreGpu& gpu, Stream stream, Prepare&& prepare) {
  const auto& [variants, first, launcher] = entries;
  const std::size_t rule = Kind::Choose(meaning, variants, call, gpu);
  if (rule == variants.size()) throw Error("no variant fits " + Kind::Describe(meaning, call));
  const auto fits = [&, &variants = variants, first = first](std::size_t k) {
    return k >= first && Kind::Fits(meaning, variants[k - first], call, gpu);
  };
  const auto launch = [&, &variants = variants, first = first, &launcher = launcher](std::size_t k) {
    const Variant& variant = variants[k - first];
    CoreGpu here = gpu;
    if (Kind::kAsksResident) here.resident = launcher.Resident(k);
    std::uint64_t passes = 1;
    for (std::uint64_t pass = 0; pass < passes; ++pass) {
      std::optional<typename Kind::Launch> one = Kind::LaunchOf(meaning, variant, call, here, pass);
      if (!one) throw Error("variant " + variant.symbol + " does not fit the call that it was chosen for");
      passes = one->passes;
      prepare(&*one);
      launcher.Launch(k + one->entry, one->blocks, reinterpret_cast<unsigned char*>(&one->params), stream);
    }
  };
  launch(launcher.Choose(Kind::SizeOf(meaning, call), first + rule, stream, fits, launch));
}

// Launching does not synchronize, and allocates nothing but scratch memory, the first time on a stream: it is safe
// under CUDA graph capture. Thread-safe.
template <typename Kind>
class CoreKernel final : public FusedKernel {
 public:
  CoreKernel(const Kernel& kernel, const Library& library, const OrtKernelInfo* info)
      : FusedKernel(kernel),
        meaning_(kernel.meaning.As<typename Kind::Meaning>()),
        launcher_(kernel, library),
        allocator_(info),
        for_hopper_(Kind::kHasWarpgroups && library.HasCodeForAlone(kHopper)) {}

  static int FirstMajor(const Kernel& kernel) { return Kind::FirstMajor(kernel.meaning.As<typename Kind::Meaning>()); }

  void Compute(OrtKernelContext* context) const override {
    const typename Kind::Call call = OpenCall(meaning_, context);
    if (call.y == nullptr) return;
    const Stream stream = launcher_.Enter(context);
    CoreGpu gpu = GpuOf(launcher_);
    gpu.tf32 = Kind::HasFloat32Products(meaning_) && UsesTf32(context);
    gpu.warpgroups = for_hopper_ && gpu.major == kHopper / 10;
    CallScratch scratch(allocator_, context);
    RunCore<Kind>(meaning_, {kernel().variants, 0, launcher_}, call, gpu, stream, [&](typename Kind::Launch* launch) {
      Kind::SetScratch(scratch.Of(launch->scratch), &launch->params);
    });
  }

 private:
  const typename Kind::Meaning& meaning_;
  const Launcher launcher_;
  const Allocator allocator_;
  const bool for_hopper_;  // whether products of warpgroups were compiled
};

}  // namespace onnxopt::cuda
