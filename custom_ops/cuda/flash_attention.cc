#include "cuda/flash_attention.h"

#include <string>

namespace onnxopt::cuda {

void FlashAttentionCudaKernel::Compute(OrtKernelContext* context) const {
  const FlashAttentionCall call = OpenCall(attention_, context);
  if (call.y == nullptr) return;
  const Stream stream = launcher_.Enter(context);
  const std::vector<Variant>& variants = kernel().variants;
  const DeviceTraits& device = launcher_.device();
  const FlashGpu gpu{for_hopper_ && device.major == kHopper / 10, device.multiprocessors, device.shared};
  const std::size_t rule = ChooseFlashAttention(attention_, variants, call, gpu);
  if (rule == variants.size()) {
    throw Error("no variant fits an attention of " + std::to_string(call.batch) + " sequences of " +
                std::to_string(call.queries) + " queries and " + std::to_string(call.keys) + " keys");
  }
  const auto fits = [&](std::size_t k) { return FitsFlashAttention(attention_, variants[k], call, gpu); };
  const auto launch = [&](std::size_t k) {
    std::optional<FlashAttentionLaunch> made = LaunchOf(attention_, variants[k], call, launcher_.Resident(k));
    if (!made) throw Error("variant " + variants[k].symbol + " does not fit the call that it was chosen for");
    launcher_.Launch(k, made->blocks, reinterpret_cast<unsigned char*>(&made->params), stream);
  };
  const auto rows = static_cast<std::uint64_t>(call.batch * attention_.heads * call.queries);
  launch(launcher_.Choose({rows, static_cast<std::uint64_t>(call.keys)}, rule, stream, fits, launch));
}

}  // namespace onnxopt::cuda
