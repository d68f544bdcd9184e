#include "cuda/convolution/graph.h"

#include <algorithm>

namespace onnxopt::cuda {
namespace {

using cudnn::Descriptor;
using cudnn::Name;
using cudnn::Type;

constexpr std::int64_t kFirstVirtual = 100;  // of the numbers of tensors that stay inside

int DataType(Dtype dtype) {
  if (dtype == Dtype::kFloat16) return cudnn::kHalf;
  return dtype == Dtype::kBfloat16 ? cudnn::kBfloat16 : cudnn::kFloat;
}

// dims: N, C, H, W, of which C lies innermost. pixel: elements from one pixel to the next.
struct Dims {
  Dims(std::int64_t batch, std::int64_t channels, std::int64_t height, std::int64_t width, std::int64_t distance = 0)
      : n(batch), c(channels), h(height), w(width), pixel(distance == 0 ? channels : distance) {}

  std::vector<std::int64_t> all() const { return {n, c, h, w}; }
  std::vector<std::int64_t> strides() const { return {h * w * pixel, 1, w * pixel, pixel}; }

  std::int64_t n, c, h, w, pixel;
};

// Makes the descriptors of one graph, in the order in which they refer to each other.
class Builder {
 public:
  Builder(const cudnn::Api& api, const ConvolutionProblem& problem)
      : api_(api), problem_(problem), dtype_(DataType(problem.convolution.dtype)) {}

  ConvolutionGraph Build(cudnn::Handle handle) {
    const Convolution& convolution = problem_.convolution;
    // Sums commute, and cuDNN has precompiled engines for this order alone.
    if (convolution.residual && !convolution.residual_last) steps_.push_back(Step::kResidual);
    if (convolution.bias) steps_.push_back(Step::kBias);
    if (convolution.activation != ConvolutionActivation::kNone) steps_.push_back(Step::kActivation);
    if (convolution.residual && convolution.residual_last) steps_.push_back(Step::kResidual);
    AddConvolution();
    for (std::size_t k = 0; k < steps_.size(); ++k) AddStep(k);
    Descriptor graph(api_, cudnn::kOperationGraph);
    graph.Set(Name::kGraphHandle, Type::kHandle, handle);
    std::vector<cudnn::BackendDescriptor> raw;
    raw.reserve(operations_.size());
    for (const std::size_t at : operations_) raw.push_back(parts_[at].raw());
    graph.Set(Name::kGraphOperations, Type::kDescriptor, raw);
    graph.Finalize("cuDNN does not take the graph of a convolution");
    return {std::move(parts_), std::move(graph)};
  }

 private:
  enum class Step : std::uint8_t { kBias, kResidual, kActivation };

  std::size_t Keep(Descriptor descriptor) {
    parts_.push_back(std::move(descriptor));
    return parts_.size() - 1;
  }

  std::size_t AddTensor(std::int64_t id, const Dims& dims, bool is_virtual) {
    Descriptor tensor(api_, cudnn::kTensor);
    tensor.Set(Name::kTensorDataType, Type::kDataType, is_virtual ? cudnn::kFloat : dtype_);
    tensor.Set(Name::kTensorDims, Type::kInt64, dims.all());
    tensor.Set(Name::kTensorStrides, Type::kInt64, dims.strides());
    tensor.Set(Name::kTensorId, Type::kInt64, id);
    tensor.Set(Name::kTensorAlignment, Type::kInt64, problem_.alignment);
    tensor.Set(Name::kTensorIsVirtual, Type::kBoolean, is_virtual);
    tensor.Finalize("cuDNN does not take a tensor of a convolution");
    return Keep(std::move(tensor));
  }
  std::size_t AddTensor(Operand operand, const Dims& dims) {
    return AddTensor(static_cast<std::int64_t>(operand), dims, false);
  }

  // pixel: 0 where the tensor has no other channels.
  Dims Output(std::int64_t pixel = 0) const {
    const ConvolutionSizes& sizes = problem_.sizes;
    return {sizes.n, sizes.k, sizes.output_h, sizes.output_w, pixel};
  }

  // What the convolution (before step 0) or the step before `step` writes.
  std::size_t Before(std::size_t step) {
    if (step == steps_.size()) return AddTensor(Operand::kY, Output(problem_.sizes.y_pixel));
    return AddTensor(kFirstVirtual + static_cast<std::int64_t>(step), Output(), true);
  }

  void AddConvolution() {
    const Window& window = problem_.convolution.window;
    const ConvolutionSizes& sizes = problem_.sizes;
    Descriptor convolution(api_, cudnn::kConvolution);
    const auto pair = [](const std::int64_t* at) { return std::vector<std::int64_t>{at[0], at[1]}; };
    convolution.Set(Name::kConvolutionSpatialDims, Type::kInt64, std::int64_t{2});
    convolution.Set(Name::kConvolutionPrecision, Type::kDataType, cudnn::kFloat);
    convolution.Set(Name::kConvolutionMode, Type::kConvolutionMode, cudnn::kCrossCorrelation);
    convolution.Set(Name::kConvolutionPrePaddings, Type::kInt64, pair(sizes.pads));
    convolution.Set(Name::kConvolutionPostPaddings, Type::kInt64, pair(sizes.pads + 2));
    convolution.Set(Name::kConvolutionStrides, Type::kInt64, pair(window.strides));
    convolution.Set(Name::kConvolutionDilations, Type::kInt64, pair(window.dilations));
    convolution.Finalize("cuDNN does not take the window of a convolution");
    const std::size_t x = AddTensor(Operand::kX, {sizes.n, sizes.c, sizes.h, sizes.w, sizes.x_pixel});
    // The number of groups follows from the channels of x and w.
    const std::size_t w = AddTensor(Operand::kW, {sizes.k, sizes.c / problem_.convolution.group, sizes.r, sizes.s});
    at_ = Before(0);
    Descriptor operation(api_, cudnn::kConvolutionForward);
    operation.Set(Name::kForwardX, parts_[x]);
    operation.Set(Name::kForwardW, parts_[w]);
    operation.Set(Name::kForwardY, parts_[at_]);
    operation.Set(Name::kForwardConvolution, convolution);
    operation.Set(Name::kForwardAlpha, Type::kFloat, 1.0F);
    operation.Set(Name::kForwardBeta, Type::kFloat, 0.0F);
    operation.Finalize("cuDNN does not take a convolution");
    Keep(std::move(convolution));
    operations_.push_back(Keep(std::move(operation)));
  }

  void AddStep(std::size_t step) {
    const bool swish = problem_.convolution.activation == ConvolutionActivation::kSilu;
    Descriptor pointwise(api_, cudnn::kPointwise);
    const int mode = steps_[step] != Step::kActivation ? cudnn::kAdd : swish ? cudnn::kSwish : cudnn::kRelu;
    pointwise.Set(Name::kPointwiseMode, Type::kPointwiseMode, mode);
    pointwise.Set(Name::kPointwisePrecision, Type::kDataType, cudnn::kFloat);
    if (mode == cudnn::kSwish) pointwise.Set(Name::kPointwiseSwishBeta, Type::kDouble, 1.0);
    pointwise.Finalize("cuDNN does not take a step behind a convolution");
    const std::size_t to = Before(step + 1);
    Descriptor operation(api_, cudnn::kPointwiseOperation);
    operation.Set(Name::kOperationPointwise, pointwise);
    operation.Set(Name::kOperationX, parts_[at_]);
    if (steps_[step] == Step::kBias) {
      operation.Set(Name::kOperationB, parts_[AddTensor(Operand::kBias, {1, problem_.sizes.k, 1, 1})]);
    } else if (steps_[step] == Step::kResidual) {
      operation.Set(Name::kOperationB, parts_[AddTensor(Operand::kResidual, Output(problem_.sizes.residual_pixel))]);
    }
    operation.Set(Name::kOperationY, parts_[to]);
    operation.Finalize("cuDNN does not take a step behind a convolution");
    Keep(std::move(pointwise));
    operations_.push_back(Keep(std::move(operation)));
    at_ = to;
  }

  const cudnn::Api& api_;
  const ConvolutionProblem& problem_;
  const int dtype_;
  std::vector<Step> steps_;
  std::vector<Descriptor> parts_;
  std::vector<std::size_t> operations_;
  std::size_t at_ = 0;  // the tensor that the last operation writes
};

std::string Times(std::initializer_list<std::int64_t> numbers) {
  std::string text;
  for (const std::int64_t number : numbers) text += (text.empty() ? "" : "x") + std::to_string(number);
  return text;
}

}  // namespace

ConvolutionProblem ConvolutionProblem::Bare() const {
  ConvolutionProblem bare = *this;
  bare.convolution.bias.reset();
  bare.convolution.residual.reset();
  bare.convolution.residual_last = false;
  bare.convolution.activation = ConvolutionActivation::kNone;
  return bare;
}

ConvolutionProblem ConvolutionProblem::Packed() const {
  ConvolutionProblem packed = *this;
  packed.sizes.x_pixel = sizes.c;
  packed.sizes.residual_pixel = packed.sizes.y_pixel = sizes.k;
  return packed;
}

std::string ConvolutionProblem::Describe() const {
  const Window& window = convolution.window;
  std::string text{Row(convolution.dtype).name};
  text += " x " + Times({sizes.n, sizes.h, sizes.w, sizes.c});
  text += " w " + Times({sizes.k, sizes.r, sizes.s, sizes.c / convolution.group});
  text += " y " + Times({sizes.output_h, sizes.output_w});
  if (window.strides[0] != 1 || window.strides[1] != 1)
    text += " strides " + Times({window.strides[0], window.strides[1]});
  if (window.dilations[0] != 1 || window.dilations[1] != 1) {
    text += " dilations " + Times({window.dilations[0], window.dilations[1]});
  }
  const bool padded = std::any_of(sizes.pads, sizes.pads + 4, [](std::int64_t pad) { return pad != 0; });
  if (padded) text += " pads " + Times({sizes.pads[0], sizes.pads[1], sizes.pads[2], sizes.pads[3]});
  if (convolution.group != 1) text += " groups " + std::to_string(convolution.group);
  if (convolution.residual && !convolution.residual_last) text += " residual";
  if (convolution.bias) text += " bias";
  if (convolution.activation == ConvolutionActivation::kRelu) text += " relu";
  if (convolution.activation == ConvolutionActivation::kSilu) text += " silu";
  if (convolution.residual && convolution.residual_last) text += " residual";
  if (sizes.x_pixel != sizes.c) text += " x in " + std::to_string(sizes.x_pixel);
  if (convolution.residual && sizes.residual_pixel != sizes.k) {
    text += " residual in " + std::to_string(sizes.residual_pixel);
  }
  if (sizes.y_pixel != sizes.k) text += " y in " + std::to_string(sizes.y_pixel);
  if (tf32) text += " tf32";
  if (alignment < 16) text += " aligned " + std::to_string(alignment);
  return text;
}

ConvolutionGraph MakeGraph(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionProblem& problem) {
  return Builder(api, problem).Build(handle);
}

}  // namespace onnxopt::cuda
