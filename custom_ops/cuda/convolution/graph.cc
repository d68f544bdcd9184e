#include "cuda/convolution/graph.h"

#include <algorithm>
#include <array>
#include <optional>

namespace onnxopt::cuda {
namespace {

using cudnn::Descriptor;
using cudnn::Name;
using cudnn::Type;

constexpr std::int64_t kFirstVirtual = 100;  // of the numbers of tensors that stay inside
constexpr std::int64_t kFirstOfResidual = 150;
constexpr std::int64_t kFirstScalar = 200;
constexpr float kWhole = 12582912;  // 1.5 * 2^23: added and subtracted, it leaves an integer, half to even

int DataType(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat16:
      return cudnn::kHalf;
    case Dtype::kBfloat16:
      return cudnn::kBfloat16;
    case Dtype::kInt8:
      return cudnn::kInt8;
    case Dtype::kUint8:
      return cudnn::kUint8;
    case Dtype::kInt32:
      return cudnn::kInt32;
    default:
      return cudnn::kFloat;
  }
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
  Builder(const cudnn::Api& api, const ConvolutionProblem& problem) : api_(api), problem_(problem) {}

  ConvolutionGraph Build(cudnn::Handle handle) {
    problem_.convolution.codes ? PlanCodes(*problem_.convolution.codes) : PlanFloats();
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
  enum class Second : std::uint8_t { kNone, kBias, kResidual, kScalar, kEarlier, kSlope, kScale };

  // A pointwise operation on what the step before it writes.
  struct Step {
    int mode;
    Second second = Second::kNone;
    float number = 0;                       // the slope or upper bound of a ReLU, or the scalar
    Name attribute = Name::kPointwiseMode;  // that number states, where it is not the scalar
    std::size_t earlier = 0;                // the step before which an operand is computed
    bool of_earlier = false;                // the first operand is, else it is what the step before writes
  };

  void PlanFloats() {
    const Convolution& convolution = problem_.convolution;
    // Sums commute, and cuDNN has precompiled engines for this order alone.
    if (convolution.residual && !convolution.residual_last) steps_.push_back({cudnn::kAdd, Second::kResidual});
    if (convolution.bias) steps_.push_back({cudnn::kAdd, Second::kBias});
    PlanActivation();
    if (convolution.residual && convolution.residual_last) steps_.push_back({cudnn::kAdd, Second::kResidual});
  }

  void PlanCodes(const ConvolutionCodes& codes) {
    const Convolution& convolution = problem_.convolution;
    const bool of_sums = convolution.bias && convolution.inputs[*convolution.bias] == Dtype::kInt32;
    if (of_sums) steps_.push_back({cudnn::kAdd, Second::kBias});
    if (convolution.scale) steps_.push_back({cudnn::kMultiply, Second::kScale});
    Multiply(codes.scale);
    if (convolution.bias && !of_sums) steps_.push_back({cudnn::kAdd, Second::kBias});
    if (convolution.residual_last) PlanActivation();
    if (codes.rounded) {
      Multiply(1 / codes.rounded->scale);
      PlanCode(codes.rounded->zero, codes.rounded_dtype == CodeDtype::kUint8);
      Multiply(codes.rounded->scale);
    }
    if (convolution.residual) steps_.push_back({cudnn::kAdd, Second::kResidual});
    if (!convolution.residual_last) PlanActivation();
    if (codes.result) {
      Multiply(1 / codes.result->scale);
      PlanZero(codes.result->zero, convolution.outputs[0] == Dtype::kUint8);
    }
  }

  // What is stored as a code is rounded half to even and stops at both ends; a zero point is added to what is rounded.
  void PlanZero(float zero, bool is_unsigned) {
    if (zero == 0) return;
    PlanCode(zero, is_unsigned);
    steps_.push_back({cudnn::kAdd, Second::kScalar, zero});
  }

  // The integer next to a number, half to even, among codes minus their zero point.
  void PlanCode(float zero, bool is_unsigned) {
    const float lowest = is_unsigned ? 0 : -128;
    steps_.push_back({cudnn::kMinimum, Second::kScalar, lowest + 255 - zero});
    steps_.push_back({cudnn::kMaximum, Second::kScalar, lowest - zero});
    steps_.push_back({cudnn::kAdd, Second::kScalar, kWhole});
    steps_.push_back({cudnn::kAdd, Second::kScalar, -kWhole});
  }

  // Multiplies by a number above 0. A product of numbers is one number, also where a ReLU is between them.
  void Multiply(float number) {
    const auto is_plain = [](const Step& step) { return step.mode == cudnn::kRelu && step.number == 0; };
    const auto last = std::find_if_not(steps_.rbegin(), steps_.rend(), is_plain);
    if (last != steps_.rend() && last->mode == cudnn::kMultiply && last->second == Second::kScalar) {
      last->number *= number;
    } else {
      steps_.push_back({cudnn::kMultiply, Second::kScalar, number});
    }
  }

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

  std::size_t AddTensor(std::int64_t id, int dtype, const Dims& dims, bool is_virtual) {
    Descriptor tensor(api_, cudnn::kTensor);
    tensor.Set(Name::kTensorDataType, Type::kDataType, dtype);
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
  std::size_t AddInside(std::int64_t id, int dtype = cudnn::kFloat) { return AddTensor(id, dtype, Output(), true); }
  std::size_t AddTensor(Operand operand, const Dims& dims) {
    return AddTensor(static_cast<std::int64_t>(operand), DataType(DtypeOf(operand)), dims, false);
  }
  Dtype DtypeOf(Operand operand) const {
    const Convolution& c = problem_.convolution;
    switch (operand) {
      case Operand::kX:
        return c.inputs[c.x];
      case Operand::kW:
        return c.inputs[c.w];
      case Operand::kY:
        return c.outputs[0];
      case Operand::kBias:
        return c.inputs[*c.bias];
      case Operand::kResidual:
        return c.inputs[*c.residual];
      case Operand::kSlope:
        return c.inputs[*c.slope];
      case Operand::kScale:
        return c.inputs[*c.scale];
    }
    return c.outputs[0];
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
    const bool of_codes = step == 0 && problem_.convolution.codes;
    return AddInside(kFirstVirtual + static_cast<std::int64_t>(step), of_codes ? cudnn::kInt32 : cudnn::kFloat);
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
    convolution.Set(Name::kConvolutionPrecision, Type::kDataType,
                    problem_.convolution.codes ? cudnn::kInt32 : cudnn::kFloat);
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
    const std::size_t x = of.of_earlier ? results_[of.earlier] : at_;
    std::optional<std::size_t> second;
    if (of.second != Second::kNone) second = SecondOf(of);
    at_ = Before(step + 1);
    results_.push_back(at_);
    AddOperation(of, x, second, at_);
  }

  void AddOperation(const Step& of, std::size_t x, std::optional<std::size_t> second, std::size_t y) {
    Descriptor pointwise(api_, cudnn::kPointwise);
    pointwise.Set(Name::kPointwiseMode, Type::kPointwiseMode, of.mode);
    pointwise.Set(Name::kPointwisePrecision, Type::kDataType, cudnn::kFloat);
    if (of.attribute != Name::kPointwiseMode) pointwise.Set(of.attribute, Type::kDouble, double{of.number});
    pointwise.Finalize("cuDNN does not take a step behind a convolution");
    Descriptor operation(api_, cudnn::kPointwiseOperation);
    operation.Set(Name::kOperationPointwise, pointwise);
    operation.Set(Name::kOperationX, parts_[x]);
    if (second) operation.Set(Name::kOperationB, parts_[*second]);
    operation.Set(Name::kOperationY, parts_[y]);
    operation.Finalize("cuDNN does not take a step behind a convolution");
    Keep(std::move(pointwise));
    operations_.push_back(Keep(std::move(operation)));
  }

  std::size_t SecondOf(const Step& step) {
    if (step.second == Second::kBias) return AddTensor(Operand::kBias, Of({1, 1, 1, 1, problem_.sizes.k}));
    if (step.second == Second::kSlope) return AddTensor(Operand::kSlope, Of({1, 1, 1, 1, problem_.sizes.k}));
    if (step.second == Second::kScale) return AddTensor(Operand::kScale, Of({1, 1, 1, 1, problem_.sizes.k}));
    if (step.second == Second::kResidual) return Residual();
    return step.second == Second::kScalar ? AddScalar(step.number) : results_[step.earlier];
  }

  // The residual, and the numbers of its codes.
  std::size_t Residual() {
    std::size_t residual = AddTensor(Operand::kResidual, Output(problem_.sizes.residual_pixel));
    const std::optional<ConvolutionCodes>& codes = problem_.convolution.codes;
    if (!codes || !codes->residual) return residual;
    std::int64_t id = kFirstOfResidual;
    const auto compute = [&](int mode, float number) {
      const std::size_t scalar = AddScalar(number);
      const std::size_t result = AddInside(id++);
      AddOperation({mode, Second::kScalar, number}, residual, scalar, result);
      residual = result;
    };
    if (codes->residual->zero != 0) compute(cudnn::kAdd, -codes->residual->zero);
    compute(cudnn::kMultiply, codes->residual->scale);
    return residual;
  }

  const cudnn::Api& api_;
  const ConvolutionProblem& problem_;
  std::vector<Step> steps_;
  std::vector<Descriptor> parts_;
  std::vector<std::size_t> operations_;
  std::vector<std::size_t> results_;  // tensors: of the convolution, and of each step
  std::vector<Scalar> scalars_;
  std::size_t at_ = 0;  // the tensor that the last operation writes
};

}  // namespace

ConvolutionGraph MakeGraph(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionProblem& problem) {
  return Builder(api, problem).Build(handle);
}

}  // namespace onnxopt::cuda
