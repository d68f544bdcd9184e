#include "cuda/image_convolution.h"

#include <string>

#include "cuda/image_convolution_variant.h"
#include "cuda/launch/provider_options.h"

namespace onnxopt::cuda {

void ImageConvolutionCudaKernel::Compute(OrtKernelContext* context) const {
  const ImageConvolutionCall call = OpenCall(convolution_, context);
  if (call.y == nullptr) return;
  const Stream stream = launcher_.Enter(context);
  const std::vector<Variant>& variants = kernel().variants;
  const DeviceTraits& device = launcher_.device();
  const bool tf32 = convolution_.dtype() == Dtype::kFloat32 && UsesTf32(context);
  const std::size_t rule = ChooseImageConvolution(convolution_, variants, call, device.shared, tf32);
  if (rule == variants.size()) {
    throw Error("no variant fits a convolution of " + std::to_string(call.batch) + " images of " +
                std::to_string(call.height) + " x " + std::to_string(call.width));
  }
  const auto fits = [&](std::size_t k) {
    return variants[k].shared <= device.shared && Allows(convolution_, variants[k], tf32) &&
           LaunchOf(convolution_, variants[k], call, 1).has_value();
  };
  const auto launch = [&](std::size_t k) {
    std::optional<ImageConvolutionLaunch> made = LaunchOf(convolution_, variants[k], call, launcher_.Resident(k));
    if (!made) throw Error("variant " + variants[k].symbol + " does not fit the call that it was chosen for");
    launcher_.Launch(k, made->blocks, reinterpret_cast<unsigned char*>(&made->params), stream);
  };
  const std::int64_t pixels = call.batch * call.out_height * call.out_width;
  const CallSize size{static_cast<std::uint64_t>(pixels * convolution_.filters),
                      static_cast<std::uint64_t>(call.out_width)};
  launch(launcher_.Choose(size, rule, stream, fits, launch));
}

}  // namespace onnxopt::cuda
