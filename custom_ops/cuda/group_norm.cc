#include "cuda/group_norm.h"

#include <string>

#include "cuda/group_norm_variant.h"
#include "kernel_file/group_norm.h"

namespace onnxopt::cuda {

void GroupNormCudaKernel::Compute(OrtKernelContext* context) const {
  const GroupNormCall call = OpenCall(norm_, context);
  if (call.y == nullptr) return;
  const Stream stream = launcher_.Enter(context);
  const GroupNormGpu gpu{launcher_.device().major, launcher_.device().multiprocessors};
  const std::vector<Variant>& variants = kernel().variants;
  const std::size_t rule = ChooseGroupNorm(norm_, variants, call, gpu);
  if (rule == variants.size()) {
    throw Error("no variant fits a group norm of " + std::to_string(call.samples) + " samples of " +
                std::to_string(call.pixels) + " pixels");
  }
  const auto fits = [&](std::size_t k) {
    return variants[k].shape.As<GroupNormShape>().launch == 0 && LaunchOf(norm_, variants[k], call, gpu).has_value();
  };
  CallScratch scratch(allocator_, context);
  const auto launch = [&](std::size_t k) {
    std::optional<GroupNormLaunch> made = LaunchOf(norm_, variants[k], call, gpu);
    if (!made) throw Error("variant " + variants[k].symbol + " does not fit the call that it was chosen for");
    const bool split = variants[k].shape.As<GroupNormShape>().layout == GroupNormLayout::kSplit;
    if (split) made->params.scratch = static_cast<float*>(scratch.Of(made->scratch));
    for (std::size_t pass = 0; pass < (split ? kGroupNormLaunches : 1U); ++pass) {
      launcher_.Launch(k + pass, made->blocks, reinterpret_cast<unsigned char*>(&made->params), stream);
    }
  };
  const CallSize size{static_cast<std::uint64_t>(call.samples * call.pixels * norm_.channels),
                      static_cast<std::uint64_t>(call.pixels)};
  launch(launcher_.Choose(size, rule, stream, fits, launch));
}

}  // namespace onnxopt::cuda
