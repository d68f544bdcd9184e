#include "cuda/depthwise.h"

#include <string>

namespace onnxopt::cuda {
namespace {

constexpr unsigned kUnasked = 48 << 10;  // bytes of shared memory that every kernel has

}  // namespace

void RunDepthwise(const Depthwise& depthwise, const std::vector<Variant>& variants, std::size_t first,
                  const Launcher& launcher, const DepthwiseCall& call, Stream stream,
                  const std::function<void(DepthwiseLaunch*)>& prepare) {
  const DepthwiseGpu gpu{launcher.device().major, launcher.device().shared, launcher.device().multiprocessors};
  const std::size_t rule = ChooseDepthwise(depthwise, variants, call, gpu);
  if (rule == variants.size()) {
    throw Error("no variant fits a depthwise convolution of " + std::to_string(call.batch) + " images of " +
                std::to_string(call.height) + " x " + std::to_string(call.width) + " x " +
                std::to_string(depthwise.channels));
  }
  const auto fits = [&](std::size_t k) {
    return k >= first && LaunchOf(depthwise, variants[k - first], call, gpu).has_value();
  };
  const auto launch = [&](std::size_t k) {
    const Variant& variant = variants[k - first];
    std::optional<DepthwiseLaunch> made = LaunchOf(depthwise, variant, call, gpu);
    if (!made) throw Error("variant " + variant.symbol + " does not fit the call that it was chosen for");
    prepare(&*made);
    if (variant.shared > kUnasked) launcher.Resident(k);
    launcher.Launch(k, made->blocks, reinterpret_cast<unsigned char*>(&made->params), stream);
  };
  const std::int64_t pixels = call.batch * call.out_height * call.out_width;
  const CallSize size{static_cast<std::uint64_t>(pixels * depthwise.channels),
                      static_cast<std::uint64_t>(call.out_width)};
  launch(launcher.Choose(size, first + rule, stream, fits, launch));
}

void DepthwiseCudaKernel::Compute(OrtKernelContext* context) const {
  const DepthwiseCall call = OpenCall(depthwise_, context);
  if (call.y == nullptr) return;
  const Stream stream = launcher_.Enter(context);
  RunDepthwise(depthwise_, kernel().variants, 0, launcher_, call, stream, [](DepthwiseLaunch*) {});
}

}  // namespace onnxopt::cuda
