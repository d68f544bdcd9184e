#include "cuda/image_convolution.h"

#include <algorithm>

#include "kernel_file/variants.h"
#include "program/divisor.h"
#include "support/math.h"

namespace onnxopt::cuda {
namespace {

constexpr std::uint64_t kMax = 0x7fffffff;
constexpr std::uint64_t kMax32 = 0xffffffff;
constexpr std::uint64_t kProductRows = 16;  // outputs of a product of a warp
constexpr std::uint64_t kReach = 4096;      // rows and columns that tiles and kernels overhang at most
constexpr std::uint64_t kAccess = 16;       // bytes of an access to the result
constexpr std::uint64_t kPixelBytes = 8;    // of an access to four channels
constexpr std::uint64_t kWeightBytes = 4;

// Whether sizes, padding and tiles that overhang included, fit signed 32 bits, and the number of an image's pixels
// unsigned ones.
bool HasSizes(const ImageConvolution& convolution, const CoreCall& call) {
  const auto of = [](std::int64_t in, std::int64_t out, std::int64_t stride) {
    return static_cast<std::uint64_t>(std::max(in, out * stride)) + kReach;
  };
  const std::uint64_t rows = of(call.height, call.out_height, convolution.window.strides[0]);
  const std::uint64_t columns = of(call.width, call.out_width, convolution.window.strides[1]);
  return rows <= kMax && columns <= kMax &&
         static_cast<std::uint64_t>(call.height) * static_cast<std::uint64_t>(call.width) <= kMax32;
}

}  // namespace

std::optional<ImageConvolutionCore::Launch> ImageConvolutionCore::LaunchOf(const ImageConvolution& convolution,
                                                                           const Variant& variant, const CoreCall& call,
                                                                           const CoreGpu& gpu, std::uint64_t /*pass*/) {
  const auto& shape = variant.shape.As<ImageConvolutionVariant>();
  if (!HasSizes(convolution, call)) return std::nullopt;
  const std::uint64_t down = kProductRows * shape.products * (variant.threads / kWarpThreads) / shape.across;
  const std::uint64_t of_row = CeilDiv(call.out_width, shape.across);
  const std::uint64_t of_image = of_row * CeilDiv(call.out_height, down);
  if (static_cast<std::uint64_t>(call.batch) > kMax / 2 / of_image) return std::nullopt;
  const std::uint64_t tiles = of_image * static_cast<std::uint64_t>(call.batch);
  const std::uint64_t pieces = static_cast<std::uint64_t>(convolution.filters) / shape.filters;
  const std::uint64_t step = std::min(tiles, std::max<std::uint64_t>(1, gpu.resident / pieces));
  Launch launch{};
  ImageConvolutionParams& params = launch.params;
  std::copy_n(call.input, convolution.inputs.size(), params.input);
  params.y = call.y;
  params.height = static_cast<int>(call.height);
  params.width = static_cast<int>(call.width);
  params.out_height = static_cast<int>(call.out_height);
  params.out_width = static_cast<int>(call.out_width);
  params.pad_top = static_cast<int>(call.pad_top);
  params.pad_left = static_cast<int>(call.pad_left);
  params.tiles = static_cast<unsigned>(tiles);
  params.step = static_cast<unsigned>(step);
  const bool aligned = IsAligned(call.y, kAccess) && IsAligned(call.input[convolution.weight], kWeightBytes) &&
                       (convolution.planes || IsAligned(call.input[convolution.x], kPixelBytes));
  params.plain = aligned ? 0 : 1;
  params.of_row = MakeDivisor32(of_row);
  params.of_image = MakeDivisor32(of_image);
  launch.blocks = static_cast<unsigned>(step * pieces);
  return launch;
}

bool ImageConvolutionCore::Fits(const ImageConvolution& convolution, const Variant& variant, const CoreCall& call,
                                const CoreGpu& gpu) {
  const bool rounds = !HasFloat32Products(convolution) || variant.shape.As<ImageConvolutionVariant>().exact != gpu.tf32;
  return rounds && variant.shared <= gpu.shared && LaunchOf(convolution, variant, call, gpu, 0).has_value();
}

}  // namespace onnxopt::cuda
