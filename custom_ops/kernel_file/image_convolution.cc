#include "kernel_file/image_convolution.h"

#include <algorithm>
#include <string>

#include "kernel_file/depthwise.h"
#include "kernel_file/fields.h"
#include "kernel_file/generated/readers.h"

namespace onnxopt {
namespace {

constexpr std::int64_t kMostSide = 11;
constexpr std::int64_t kMostStride = 4;
constexpr std::uint64_t kMostChannels = 4;
constexpr std::uint64_t kMostFilters = 4096;
constexpr std::uint64_t kTileFilters = 8;
constexpr std::uint64_t kProductRows = 16;
constexpr std::uint64_t kMostProducts = 16;
constexpr std::uint64_t kMostAcross = 256;
constexpr std::uint64_t kMaxShared = std::uint64_t{1} << 20U;

void CheckWindow(const Window& window, const JsonReader& json) {
  for (int axis = 0; axis < 2; ++axis) {
    if (window.kernel[axis] > kMostSide || window.strides[axis] > kMostStride || window.dilations[axis] != 1) {
      json.Fail("has a kernel above " + std::to_string(kMostSide) + ", a stride above " + std::to_string(kMostStride) +
                " or a dilation");
    }
  }
}

void CheckReads(const DepthwisePart& part, const JsonReader& json) {
  for (const DepthwiseRead& read : part.reads) {
    if (read.form == DepthwiseForm::kElement) json.Fail("reads a tensor by element");
  }
}

bool IsRead(Dtype dtype) { return dtype == Dtype::kFloat16 || dtype == Dtype::kBfloat16 || dtype == Dtype::kFloat32; }

// Which inputs need not have the weight's dtype: the image and what a program in front reads.
std::vector<bool> FreeInputs(const ImageConvolution& convolution, const JsonReader& json) {
  std::vector<bool> is_free(convolution.inputs.size());
  if (!convolution.before) return is_free;
  const Dtype image = convolution.inputs[convolution.x];
  if (!IsRead(image) && image != Dtype::kUint8) json["x"].Fail("is no image of floats or bytes");
  is_free[convolution.x] = true;
  for (const DepthwiseRead& read : convolution.before->reads) {
    if (!IsRead(convolution.inputs[read.input])) json["before"].Fail("reads what is no float");
    is_free[read.input] = true;
  }
  return is_free;
}

}  // namespace

ImageConvolution ReadImageConvolution(const JsonReader& json, const std::vector<Dtype>& inputs,
                                      const std::vector<Dtype>& outputs) {
  ImageConvolution convolution;
  if (inputs.size() < 2 || inputs.size() > kImageConvolutionInputs) {
    json["inputs"].Fail("are not 2 to " + std::to_string(kImageConvolutionInputs));
  }
  const auto position = [&](const char* field) { return json[field].Number(0, inputs.size() - 1); };
  convolution.x = position("x");
  convolution.weight = position("weight");
  const Dtype dtype = inputs[convolution.weight];
  if (!IsRead(dtype)) json["inputs"].Fail("are not floats of 16 or 32 bits");
  if (outputs != std::vector<Dtype>{dtype}) json["outputs"].Fail("are not one of the inputs' dtype");
  convolution.inputs = inputs;
  convolution.dtype = dtype;
  convolution.channels = static_cast<std::int64_t>(json["channels"].Number(1, kMostChannels));
  convolution.weight_channels = static_cast<std::int64_t>(
      json["weight_channels"].Number(static_cast<std::uint64_t>(convolution.channels), kMostChannels));
  const std::uint64_t filters = json["filters"].Number(kTileFilters, kMostFilters);
  if (filters % kTileFilters != 0) json["filters"].Fail("is no multiple of " + std::to_string(kTileFilters));
  convolution.filters = static_cast<std::int64_t>(filters);
  convolution.planes = json["planes"].Flag();
  convolution.window = ReadWindow(json["window"]);
  CheckWindow(convolution.window, json["window"]);
  if (json.Has("bias")) convolution.bias = position("bias");
  convolution.after = ReadDepthwisePart(json["after"], inputs, Dtype::kFloat32, dtype);
  CheckReads(convolution.after, json["after"]);
  if (json.Has("before")) {
    convolution.before = ReadDepthwisePart(json["before"], inputs, inputs[convolution.x], dtype);
    CheckReads(*convolution.before, json["before"]);
  }
  const std::vector<bool> is_free = FreeInputs(convolution, json);
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    if (inputs[k] != dtype && !is_free[k]) json["inputs"].Fail("are of several dtypes");
  }
  return convolution;
}

Variant ReadImageVariant(const JsonReader& json, const ImageConvolution& convolution) {
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
