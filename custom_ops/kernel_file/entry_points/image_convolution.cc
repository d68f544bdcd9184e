#include "kernel_file/entry_points/image_convolution.h"

#include "kernel_file/fields.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kMostFilters = 4096;
constexpr std::uint64_t kTileFilters = 8;
constexpr std::uint64_t kProductRows = 16;
constexpr std::uint64_t kMostProducts = 16;
constexpr std::uint64_t kMostAcross = 256;
constexpr std::uint64_t kMaxShared = std::uint64_t{1} << 20U;

}  // namespace

Variant ReadImageConvolutionVariant(const JsonReader& json, const ImageConvolution& convolution) {
  Variant variant = ReadVariant(json);
  variant.waits = json["waits"].Flag();
  variant.shared = static_cast<unsigned>(json["shared"].Number(0, kMaxShared));
  if (variant.threads % kWarpThreads != 0) json["threads"].Fail("is no multiple of a warp");
  const std::uint64_t products = json["products"].Number(1, kMostProducts);
  const std::uint64_t across = json["across"].Number(kTileFilters, kMostAcross);
  const std::uint64_t filters = json["filters"].Number(kTileFilters, kMostFilters);
  const std::uint64_t outputs = kProductRows * products * (variant.threads / kWarpThreads);
  if (outputs % across != 0) json["across"].Fail("does not divide a block's outputs");
  if (static_cast<std::uint64_t>(convolution.filters) % filters != 0) {
    json["filters"].Fail("does not divide the kernel's filters");
  }
  ImageTileShape shape;
  shape.across = static_cast<unsigned>(across);
  shape.down = static_cast<unsigned>(outputs / across);
  shape.filters = static_cast<unsigned>(filters);
  shape.exact = json["exact"].Flag();
  variant.shape.Set(shape);
  return variant;
}

}  // namespace onnxopt
