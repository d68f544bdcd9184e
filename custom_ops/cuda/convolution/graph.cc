#include "cuda/convolution/graph.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "support/portability.h"

namespace onnxopt::cuda {
namespace {

using cudnn::Descriptor;
using cudnn::Name;
using cudnn::Type;

constexpr std::int64_t kFirstVirtual = 100;  // of the numbers of tensors that stay inside
constexpr std::int64_t kFirstScalar = 200;

int DataType(Dtype dtype) {
  if (dtype == Dtype::kFloat16) return cudnn::kHalf;
  return dtype == Dtype::kBfloat16 ? cudnn::kBfloat16 : cudnn::kFloat;
}

// [N, D, H, W, C]. pixel: elements from one pixel to the next.
struct Dims {
  // has_depth: whether cuDNN is to know of three dims. distance: 0 where pixels have no other channels between them.
  Dims(bool has_depth, const std::array<std::int64_t, 5>& sizes, std::int64_t distance = 0)
      : is_volume(has_depth), of(sizes), pixel(distance == 0 ? sizes[4] : distance) {}

  // N, C, D, H, W, of which C lies innermost; no D where there are two dims.
  std::vector<std::int64_t> all() const {
    return is_volume ? std::vector<std::int64_t>{of[0], of[4], of[1], of[2], of[3]}
                     : std::vector<std::int64_t>{of[0], of[4], of[2], of[3]};
  }
  std::vector<std::int64_t> strides() const {
    const std::int64_t row = of[3] * pixel;
    const std::int64_t plane = of[2] * row;
    return is_volume ? std::vector<std::int64_t>{of[1] * plane, 1, plane, row, pixel}
                     : std::vector<std::int64_t>{plane, 1, row, pixel};
  }

  bool is_volume;
  std::array<std::int64_t, 5> of;
  std::int64_t pixel;
};

// Makes the descriptors of one graph, in the order in which they refer to each other.
class Builder {
 public:
  Builder(const cudnn::Api& api, const ConvolutionProblem& problem)
      : api_(api), problem_(problem), dtype_(DataType(problem.convolution.dtype())) {}

  ConvolutionGraph Build(cudnn::Handle handle) {
    const Convolution& convolution = problem_.convolution;
    // Sums commute, and cuDNN has precompiled engines for this order alone.
    if (convolution.residual && !convolution.residual_last) steps_.push_back({cudnn::kAdd, Second::kResidual});
    if (convolution.bias) steps_.push_back({cudnn::kAdd, Second::kBias});
    PlanActivation();
    if (convolution.residual && convolution.residual_last) steps_.push_back({cudnn::kAdd, Second::kResidual});
    AddConvolution();
    for (std::size_t k = 0; k < steps_.size(); ++k) AddStep(k);
    Descriptor graph(api_, cudnn::kOperationGraph);
    graph.Set(Name::kGraphHandle, Type::kHandle, handle);
    std::vector<cudnn::BackendDescriptor> raw;
    raw.reserve(operations_.size());
    for (const std::size_t at : operations_) raw.push_back(parts_[at].raw());
    graph.Set(Name::kGraphOperations, Type::kDescriptor, raw);
    graph.Finalize("cuDNN does not take the graph of a convolution");
    return {std::move(parts_), std::move(graph), std::move(scalars_)};
  }

 private:
  enum class Second : std::uint8_t { kNone, kBias, kResidual, kScalar, kEarlier, kSlope };

  // A pointwise operation on what the step before it writes.
  struct Step {
    int mode;
    Second second = Second::kNone;
    float number = 0;                       // the slope or upper bound of a ReLU, or the scalar
    Name attribute = Name::kPointwiseMode;  // that number states, where it is not the scalar
    std::size_t earlier = 0;                // the step before which an operand is computed
    bool of_earlier = false;                // the first operand is, else it is what the step before writes
  };

  // The steps of the activation. cuDNN offers a bounded ReLU that ends a graph to engines that are slow; a minimum
  // behind a plain one is another graph.
  void PlanActivation() {
    const float value = problem_.convolution.activation_value;
    const std::size_t before = steps_.size();
    switch (problem_.convolution.activation) {
      case ConvolutionActivation::kNone:
        return;
      case ConvolutionActivation::kPrelu:
        steps_.push_back({cudnn::kRelu});
        steps_.push_back({cudnn::kMinimum, Second::kScalar, 0, Name::kPointwiseMode, before, true});
        steps_.push_back({cudnn::kMultiply, Second::kSlope});
        return steps_.push_back({cudnn::kAdd, Second::kEarlier, 0, Name::kPointwiseMode, before + 1});
      case ConvolutionActivation::kRelu:
        return steps_.push_back({cudnn::kRelu});
      case ConvolutionActivation::kSilu:
        return steps_.push_back({cudnn::kSwish, Second::kNone, 1, Name::kPointwiseSwishBeta});
      case ConvolutionActivation::kClip:
        steps_.push_back({cudnn::kRelu});
        return steps_.push_back({cudnn::kMinimum, Second::kScalar, value});
      case ConvolutionActivation::kLeakyRelu:
        return steps_.push_back({cudnn::kRelu, Second::kNone, value, Name::kPointwiseReluSlope});
      case ConvolutionActivation::kHardswish:
        steps_.push_back({cudnn::kMultiply, Second::kScalar, 1.0F / 6});
        steps_.push_back({cudnn::kAdd, Second::kScalar, 0.5F});
        steps_.push_back({cudnn::kRelu, Second::kNone, 1, Name::kPointwiseReluUpperClip});
        return steps_.push_back({cudnn::kMultiply, Second::kEarlier, 0, Name::kPointwiseMode, before});
    }
  }

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
  std::size_t AddScalar(float value) {
    const std::int64_t id = kFirstScalar + static_cast<std::int64_t>(scalars_.size());
    scalars_.push_back({id, value});
    Descriptor tensor(api_, cudnn::kTensor);
    tensor.Set(Name::kTensorDataType, Type::kDataType, cudnn::kFloat);
    tensor.Set(Name::kTensorDims, Type::kInt64, Of({1, 1, 1, 1, 1}).all());
    tensor.Set(Name::kTensorStrides, Type::kInt64, Of({1, 1, 1, 1, 1}).strides());
    tensor.Set(Name::kTensorId, Type::kInt64, id);
    tensor.Set(Name::kTensorAlignment, Type::kInt64, static_cast<std::int64_t>(sizeof(float)));
    tensor.Set(Name::kTensorIsByValue, Type::kBoolean, true);
    tensor.Finalize("cuDNN does not take a number of a convolution");
    return Keep(std::move(tensor));
  }
  std::size_t AddTensor(Operand operand, const Dims& dims) {
    return AddTensor(static_cast<std::int64_t>(operand), dims, false);
  }

  // pixel: 0 where the tensor has no other channels.
  Dims Output(std::int64_t pixel = 0) const {
    const ConvolutionSizes& sizes = problem_.sizes;
    return Of({sizes.n, sizes.output_d, sizes.output_h, sizes.output_w, sizes.k}, pixel);
  }

  Dims Of(const std::array<std::int64_t, 5>& sizes, std::int64_t pixel = 0) const {
    return {problem_.convolution.window.depth.has_value(), sizes, pixel};
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
    std::vector<std::int64_t> before;
    std::vector<std::int64_t> after;
    std::vector<std::int64_t> strides;
    std::vector<std::int64_t> dilations;
    for (int axis = window.depth ? kDepthAxis : kHeightAxis; axis <= kWidthAxis; ++axis) {
      const WindowSide side = SideOf(window, axis);
      before.push_back(sizes.pads[axis + 1]);
      after.push_back(sizes.pads[axis + 4]);
      strides.push_back(side.stride);
      dilations.push_back(side.dilation);
    }
    convolution.Set(Name::kConvolutionSpatialDims, Type::kInt64, static_cast<std::int64_t>(strides.size()));
    convolution.Set(Name::kConvolutionPrecision, Type::kDataType, cudnn::kFloat);
    convolution.Set(Name::kConvolutionMode, Type::kConvolutionMode, cudnn::kCrossCorrelation);
    convolution.Set(Name::kConvolutionPrePaddings, Type::kInt64, before);
    convolution.Set(Name::kConvolutionPostPaddings, Type::kInt64, after);
    convolution.Set(Name::kConvolutionStrides, Type::kInt64, strides);
    convolution.Set(Name::kConvolutionDilations, Type::kInt64, dilations);
    convolution.Finalize("cuDNN does not take the window of a convolution");
    const std::size_t x = AddTensor(Operand::kX, Of({sizes.n, sizes.d, sizes.h, sizes.w, sizes.c}, sizes.x_pixel));
    // The number of groups follows from the channels of x and w.
    const std::int64_t group = problem_.convolution.group;
    const bool transposed = problem_.convolution.transposed;
    const std::size_t w =
        AddTensor(Operand::kW, transposed ? Of({sizes.c, sizes.t, sizes.r, sizes.s, sizes.k / group})
                                          : Of({sizes.k, sizes.t, sizes.r, sizes.s, sizes.c / group}));
    at_ = Before(0);
    results_.push_back(at_);
    Descriptor operation(api_, transposed ? cudnn::kConvolutionBackwardData : cudnn::kConvolutionForward);
    operation.Set(transposed ? Name::kBackwardDy : Name::kForwardX, parts_[x]);
    operation.Set(transposed ? Name::kBackwardW : Name::kForwardW, parts_[w]);
    operation.Set(transposed ? Name::kBackwardDx : Name::kForwardY, parts_[at_]);
    operation.Set(transposed ? Name::kBackwardConvolution : Name::kForwardConvolution, convolution);
    operation.Set(transposed ? Name::kBackwardAlpha : Name::kForwardAlpha, Type::kFloat, 1.0F);
    operation.Set(transposed ? Name::kBackwardBeta : Name::kForwardBeta, Type::kFloat, 0.0F);
    operation.Finalize("cuDNN does not take a convolution");
    Keep(std::move(convolution));
    operations_.push_back(Keep(std::move(operation)));
  }

  void AddStep(std::size_t step) {
    const Step& of = steps_[step];
    Descriptor pointwise(api_, cudnn::kPointwise);
    pointwise.Set(Name::kPointwiseMode, Type::kPointwiseMode, of.mode);
    pointwise.Set(Name::kPointwisePrecision, Type::kDataType, cudnn::kFloat);
    if (of.attribute != Name::kPointwiseMode) pointwise.Set(of.attribute, Type::kDouble, double{of.number});
    pointwise.Finalize("cuDNN does not take a step behind a convolution");
    const std::size_t to = Before(step + 1);
    Descriptor operation(api_, cudnn::kPointwiseOperation);
    operation.Set(Name::kOperationPointwise, pointwise);
    operation.Set(Name::kOperationX, parts_[of.of_earlier ? results_[of.earlier] : at_]);
    if (of.second != Second::kNone) operation.Set(Name::kOperationB, parts_[SecondOf(of)]);
    operation.Set(Name::kOperationY, parts_[to]);
    operation.Finalize("cuDNN does not take a step behind a convolution");
    Keep(std::move(pointwise));
    operations_.push_back(Keep(std::move(operation)));
    at_ = to;
    results_.push_back(at_);
  }

  std::size_t SecondOf(const Step& step) {
    if (step.second == Second::kBias) return AddTensor(Operand::kBias, Of({1, 1, 1, 1, problem_.sizes.k}));
    if (step.second == Second::kSlope) return AddTensor(Operand::kSlope, Of({1, 1, 1, 1, problem_.sizes.k}));
    if (step.second == Second::kResidual) return AddTensor(Operand::kResidual, Output(problem_.sizes.residual_pixel));
    return step.second == Second::kScalar ? AddScalar(step.number) : results_[step.earlier];
  }

  const cudnn::Api& api_;
  const ConvolutionProblem& problem_;
  const int dtype_;
  std::vector<Step> steps_;
  std::vector<Descriptor> parts_;
  std::vector<std::size_t> operations_;
  std::vector<std::size_t> results_;  // tensors: of the convolution, and of each step
  std::vector<Scalar> scalars_;
  std::size_t at_ = 0;  // the tensor that the last operation writes
};

// The activation, after a space; "" for none.
std::string Text(const Convolution& convolution) {
  std::array<char, 32> value{};  // enough for %.9g, which tells all floats apart
  std::snprintf(value.data(), value.size(), " %.9g", static_cast<double>(convolution.activation_value));
  switch (convolution.activation) {
    case ConvolutionActivation::kNone:
      return "";
    case ConvolutionActivation::kRelu:
      return " relu";
    case ConvolutionActivation::kSilu:
      return " silu";
    case ConvolutionActivation::kClip:
      return std::string(" clip") + value.data();
    case ConvolutionActivation::kLeakyRelu:
      return std::string(" leaky_relu") + value.data();
    case ConvolutionActivation::kHardswish:
      return " hardswish";
    case ConvolutionActivation::kPrelu:
      return " prelu";
  }
  return "";
}

std::string Times(const std::vector<std::int64_t>& numbers) {
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
  bare.convolution.activation_value = 0;
  bare.convolution.slope.reset();
  return bare;
}

ConvolutionProblem ConvolutionProblem::Ready() const {
  if (!Compiles()) return *this;
  if (convolution.transposed) return Bare();
  ConvolutionProblem ready = *this;
  if (convolution.residual_last) ready.convolution.residual.reset();
  ready.convolution.residual_last = false;
  ready.convolution.activation = ConvolutionActivation::kNone;
  ready.convolution.activation_value = 0;
  ready.convolution.slope.reset();
  return ready;
}

int ConvolutionProblem::PowerOfPixels() const {
  const double pixels = static_cast<double>(sizes.n) * static_cast<double>(sizes.output_d) *
                        static_cast<double>(sizes.output_h * sizes.output_w);
  return static_cast<int>(std::lround(std::log2(std::max(pixels, 1.0))));
}

std::optional<ConvolutionProblem> ConvolutionProblem::OfPixels(int power) const {
  const auto power_of_two = [](int of) { return std::int64_t{1} << static_cast<unsigned>(of); };
  const bool is_volume = convolution.window.depth.has_value();
  const int through = is_volume ? power / 3 : 0;
  const int plane = power - through;
  ConvolutionProblem like = *this;
  like.sizes.n = 1 + plane % 2;
  for (int axis = is_volume ? kDepthAxis : kHeightAxis; axis <= kWidthAxis; ++axis) {
    const std::int64_t side = power_of_two(axis == kDepthAxis ? through : plane / 2);
    const std::int64_t stride = SideOf(convolution.window, axis).stride;
    const std::int64_t extent = convolution.transposed ? std::max<std::int64_t>(1, side / stride) : side * stride;
    const Slide slide = OutputAlong(convolution, axis, extent);
    if (slide.output < 1) return std::nullopt;
    (axis == kDepthAxis ? like.sizes.d : axis == kHeightAxis ? like.sizes.h : like.sizes.w) = extent;
    (axis == kDepthAxis    ? like.sizes.output_d
     : axis == kHeightAxis ? like.sizes.output_h
                           : like.sizes.output_w) = slide.output;
    like.sizes.pads[axis + 1] = slide.pad_before;
    like.sizes.pads[axis + 4] = slide.pad_after;
  }
  return like;
}

bool ConvolutionProblem::Compiles() const {
  const ConvolutionActivation activation = convolution.activation;
  if (convolution.transposed)
    return convolution.bias || convolution.residual || activation != ConvolutionActivation::kNone;
  return activation != ConvolutionActivation::kNone && activation != ConvolutionActivation::kRelu;
}

ConvolutionProblem ConvolutionProblem::WithoutCompiling() const {
  if (!Compiles()) return *this;
  return Packed().Ready();
}

ConvolutionProblem ConvolutionProblem::Packed() const {
  ConvolutionProblem packed = *this;
  packed.sizes.x_pixel = sizes.c;
  packed.sizes.residual_pixel = packed.sizes.y_pixel = sizes.k;
  return packed;
}

std::string ConvolutionProblem::Describe() const {
  const Window& window = convolution.window;
  // A number for each axis, of images without the depth, which is the second of five dims and the first of three.
  const auto times = [&](std::vector<std::int64_t> of) {
    if (!window.depth) of.erase(of.begin() + (of.size() == 5 ? 1 : 0));
    return Times(of);
  };
  std::vector<std::int64_t> strides;
  std::vector<std::int64_t> dilations;
  for (int axis = window.depth ? kDepthAxis : kHeightAxis; axis <= kWidthAxis; ++axis) {
    strides.push_back(SideOf(window, axis).stride);
    dilations.push_back(SideOf(window, axis).dilation);
  }
  std::string text{Row(convolution.dtype()).name};
  text += " x " + times({sizes.n, sizes.d, sizes.h, sizes.w, sizes.c});
  const std::int64_t group = convolution.group;
  text += " w " + (convolution.transposed ? times({sizes.c, sizes.t, sizes.r, sizes.s, sizes.k / group}) + " transposed"
                                          : times({sizes.k, sizes.t, sizes.r, sizes.s, sizes.c / group}));
  text += " y " + times({sizes.output_d, sizes.output_h, sizes.output_w});
  const auto above = [](std::int64_t least) { return [least](std::int64_t number) { return number > least; }; };
  if (std::any_of(strides.begin(), strides.end(), above(1))) text += " strides " + Times(strides);
  if (std::any_of(dilations.begin(), dilations.end(), above(1))) text += " dilations " + Times(dilations);
  if (std::any_of(sizes.pads, sizes.pads + 6, above(0))) {
    std::vector<std::int64_t> pads(sizes.pads, sizes.pads + 6);
    if (!window.depth) pads = {pads[1], pads[2], pads[4], pads[5]};
    text += " pads " + Times(pads);
  }
  if (convolution.group != 1) text += " groups " + std::to_string(convolution.group);
  if (convolution.residual && !convolution.residual_last) text += " residual";
  if (convolution.bias) text += " bias";
  text += Text(convolution);
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
