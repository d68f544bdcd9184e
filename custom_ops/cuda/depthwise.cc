#include "cuda/depthwise.h"

#include <string>

#include "cuda/depthwise_variant.h"

namespace onnxopt::cuda {
namespace {

constexpr unsigned kUnasked = 48 << 10;  // bytes of shared memory that every kernel has

}  // namespace

void DepthwiseCudaKernel::Compute(OrtKernelContext* context) const {
  const DepthwiseCall call = OpenCall(depthwise_, context);
  if (call.y == nullptr) return;
  const Stream stream = launcher_.Enter(context);
  const DepthwiseGpu gpu{launcher_.device().major, launcher_.device().shared};
  const std::vector<Variant>& variants = kernel().variants;
  const std::size_t rule = ChooseDepthwise(depthwise_, variants, call, gpu);
  if (rule == variants.size()) {
    throw Error("no variant fits a depthwise convolution of " + std::to_string(call.batch) + " images of " +
                std::to_string(call.height) + " x " + std::to_string(call.width) + " x " +
                std::to_string(depthwise_.channels));
  }
  const auto fits = [&](std::size_t k) { return LaunchOf(depthwise_, variants[k], call, gpu).has_value(); };
  const auto launch = [&](std::size_t k) {
    std::optional<DepthwiseLaunch> made = LaunchOf(depthwise_, variants[k], call, gpu);
    if (!made) throw Error("variant " + variants[k].symbol + " does not fit the call that it was chosen for");
    if (variants[k].shared > kUnasked) launcher_.Resident(k);
    launcher_.Launch(k, made->blocks, reinterpret_cast<unsigned char*>(&made->params), stream);
  };
  const std::int64_t pixels = call.batch * call.out_height * call.out_width;
  const CallSize size{static_cast<std::uint64_t>(pixels * depthwise_.channels),
                      static_cast<std::uint64_t>(call.out_width)};
  launch(launcher_.Choose(size, rule, stream, fits, launch));
}

}  // namespace onnxopt::cuda
