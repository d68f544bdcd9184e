#include "cuda/convolution/epilogue.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "support/error.h"

namespace onnxopt::cuda {
namespace {

constexpr float kOne = 1;
constexpr float kZero = 0;

class Tensor {
 public:
  // [n, h, w, c]; 1 where the tensor is broadcast. pixel: elements from one pixel to the next.
  Tensor(const cudnn::Api& api, Dtype dtype, std::int64_t n, std::int64_t h, std::int64_t w, std::int64_t c,
         std::int64_t pixel)
      : api_(api) {
    const int type = dtype == Dtype::kFloat16    ? cudnn::kHalf
                     : dtype == Dtype::kBfloat16 ? cudnn::kBfloat16
                                                 : cudnn::kFloat;
    const auto of = [](std::int64_t value) { return static_cast<int>(value); };
    if (std::max({n, h * w * pixel, w * pixel}) > std::numeric_limits<int>::max()) {
      throw Error(
          "the result of a convolution has images of " + std::to_string(h * w * pixel) +
          " elements, and no plan of cuDNN adds to them; set ONNXOPT_DISABLE=1 to run without onnxopt's kernels");
    }
    api.Check(api.cudnnCreateTensorDescriptor(&raw_), "cuDNN makes no tensor");
    const cudnn::Status status = api.cudnnSetTensor4dDescriptorEx(raw_, type, of(n), of(c), of(h), of(w),
                                                                  of(h * w * pixel), 1, of(w * pixel), of(pixel));
    if (status != cudnn::kSuccess) api.cudnnDestroyTensorDescriptor(raw_);
    api.Check(status, "cuDNN does not take a tensor");
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() { api_.cudnnDestroyTensorDescriptor(raw_); }

  cudnn::TensorDescriptor raw() const { return raw_; }

 private:
  const cudnn::Api& api_;
  cudnn::TensorDescriptor raw_ = nullptr;
};

class ActivationOf {
 public:
  // limit: the upper bound of a clipped ReLU.
  ActivationOf(const cudnn::Api& api, int mode, float limit = 0) : api_(api) {
    api.Check(api.cudnnCreateActivationDescriptor(&raw_), "cuDNN makes no activation");
    const cudnn::Status status =
        api.cudnnSetActivationDescriptor(raw_, mode, cudnn::kPropagatesNan, static_cast<double>(limit));
    if (status != cudnn::kSuccess) api.cudnnDestroyActivationDescriptor(raw_);
    api.Check(status, "cuDNN does not take an activation");
  }
  ActivationOf(const ActivationOf&) = delete;
  ActivationOf& operator=(const ActivationOf&) = delete;
  ~ActivationOf() { api_.cudnnDestroyActivationDescriptor(raw_); }

  // data = scale * activation(data) + kept * data
  void Run(cudnn::Handle handle, const Tensor& tensor, void* data, float scale = kOne, float kept = kZero) const {
    Run(handle, tensor, data, tensor, data, scale, kept);
  }
  // to = scale * activation(from) + kept * to
  void Run(cudnn::Handle handle, const Tensor& tensor, const void* from, const Tensor& target, void* to,
           float scale = kOne, float kept = kZero) const {
    const cudnn::Status status =
        api_.cudnnActivationForward(handle, raw_, &scale, tensor.raw(), from, &kept, target.raw(), to);
    api_.Check(status, "cuDNN does not activate the result of a convolution");
  }

 private:
  const cudnn::Api& api_;
  cudnn::ActivationDescriptor raw_ = nullptr;
};

class Product {
 public:
  explicit Product(const cudnn::Api& api) : api_(api) {
    api.Check(api.cudnnCreateOpTensorDescriptor(&raw_), "cuDNN makes no product");
    const cudnn::Status status =
        api.cudnnSetOpTensorDescriptor(raw_, cudnn::kOpTensorMultiply, cudnn::kFloat, cudnn::kPropagatesNan);
    if (status != cudnn::kSuccess) api.cudnnDestroyOpTensorDescriptor(raw_);
    api.Check(status, "cuDNN does not take a product");
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;
  ~Product() { api_.cudnnDestroyOpTensorDescriptor(raw_); }

  // data = data * factor, element by element. factors: of the factor, which may be broadcast.
  void Run(cudnn::Handle handle, const Tensor& tensor, void* data, const Tensor& factors, const void* factor) const {
    const cudnn::Status status = api_.cudnnOpTensor(handle, raw_, &kOne, tensor.raw(), data, &kOne, factors.raw(),
                                                    factor, &kZero, tensor.raw(), data);
    api_.Check(status, "cuDNN does not multiply the result of a convolution");
  }

 private:
  const cudnn::Api& api_;
  cudnn::OpTensorDescriptor raw_ = nullptr;
};

// gate = clip(y / 6 + 1 / 2) to 0 to 1; y = y * gate
void RunHardSwish(const cudnn::Api& api, cudnn::Handle handle, const Tensor& tensor, void* y, void* gate) {
  constexpr float kSixth = 1.0F / 6;
  // 1 / 2 is the sigmoid of 0. cuDNN 9.19 reads the number that cudnnSetTensor takes as a float, and its manual says as
  // an element of the tensor; 0 is the same in both.
  api.Check(api.cudnnSetTensor(handle, tensor.raw(), gate, &kZero), "cuDNN does not set a tensor");
  ActivationOf(api, cudnn::kActivationSigmoid).Run(handle, tensor, gate);
  api.Check(api.cudnnAddTensor(handle, &kSixth, tensor.raw(), y, &kOne, tensor.raw(), gate),
            "cuDNN does not scale the result of a convolution");
  ActivationOf(api, cudnn::kActivationClippedRelu, kOne).Run(handle, tensor, gate);
  Product(api).Run(handle, tensor, y, tensor, gate);
}

// below = y - relu(y), times the slope of its channel; y = relu(y) + below
void RunPrelu(const cudnn::Api& api, cudnn::Handle handle, const Tensor& tensor, const Tensor& slopes, void* y,
              const void* slope, void* below) {
  constexpr float kMinusOne = -1;
  const auto add = [&](const void* what, void* to) {
    api.Check(api.cudnnAddTensor(handle, &kOne, tensor.raw(), what, &kOne, tensor.raw(), to),
              "cuDNN does not add to the result of a convolution");
  };
  const ActivationOf relu(api, cudnn::kActivationRelu);
  relu.Run(handle, tensor, y, tensor, below, kMinusOne, kZero);
  add(y, below);
  Product(api).Run(handle, tensor, below, slopes, slope);
  relu.Run(handle, tensor, y);
  add(below, y);
}

// The activation as one function of cuDNN's, where it is one.
std::optional<ActivationOf> OneStep(const cudnn::Api& api, const Convolution& convolution) {
  switch (convolution.activation) {
    case ConvolutionActivation::kRelu:
      return std::optional<ActivationOf>(std::in_place, api, cudnn::kActivationRelu);
    case ConvolutionActivation::kSilu:
      return std::optional<ActivationOf>(std::in_place, api, cudnn::kActivationSwish);
    case ConvolutionActivation::kClip:
      return std::optional<ActivationOf>(std::in_place, api, cudnn::kActivationClippedRelu,
                                         convolution.activation_value);
    case ConvolutionActivation::kNone:
    case ConvolutionActivation::kLeakyRelu:
    case ConvolutionActivation::kHardswish:
    case ConvolutionActivation::kPrelu:
      break;
  }
  return std::nullopt;
}

// The others, in place.
void RunSteps(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionProblem& problem, const Tensor& tensor,
              const ConvolutionPointers& at, void* scratch) {
  const Convolution& convolution = problem.convolution;
  const float slope = convolution.activation_value;
  switch (convolution.activation) {
    case ConvolutionActivation::kNone:
    case ConvolutionActivation::kRelu:
    case ConvolutionActivation::kSilu:
    case ConvolutionActivation::kClip:
      return;
    case ConvolutionActivation::kLeakyRelu:
      return ActivationOf(api, cudnn::kActivationRelu).Run(handle, tensor, at.y, kOne - slope, slope);
    case ConvolutionActivation::kHardswish:
      return RunHardSwish(api, handle, tensor, at.y, scratch);
    case ConvolutionActivation::kPrelu:
      return RunPrelu(api, handle, tensor, Tensor(api, convolution.dtype(), 1, 1, 1, problem.sizes.k, problem.sizes.k),
                      at.y, at.slope, scratch);
  }
}

}  // namespace

std::int64_t EpilogueScratch(const ConvolutionProblem& problem) {
  const ConvolutionActivation activation = problem.convolution.activation;
  if (activation != ConvolutionActivation::kHardswish && activation != ConvolutionActivation::kPrelu) return 0;
  // The scratch lies as the result does, which may have other channels between its pixels.
  const ConvolutionSizes& s = problem.sizes;
  return s.output_pixels() * s.y_pixel * static_cast<std::int64_t>(Size(problem.convolution.dtype()));
}

void RunEpilogue(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionProblem& problem,
                 const ConvolutionPointers& at, const PixelsAt& to, void* scratch) {
  const Convolution& convolution = problem.convolution;
  const ConvolutionSizes& s = problem.sizes;
  const std::int64_t rows = s.output_d * s.output_h;
  const Tensor y(api, convolution.dtype(), s.n, rows, s.output_w, s.k, s.y_pixel);
  const Tensor target(api, convolution.dtype(), s.n, rows, s.output_w, s.k, to.pixel);
  const auto add = [&](const Tensor& tensor, const void* data, const Tensor& sum, void* at_sum) {
    const cudnn::Status status = api.cudnnAddTensor(handle, &kOne, tensor.raw(), data, &kOne, sum.raw(), at_sum);
    api.Check(status, "cuDNN does not add to the result of a convolution");
  };
  const auto add_residual = [&](const Tensor& sum, void* at_sum) {
    add(Tensor(api, convolution.dtype(), s.n, rows, s.output_w, s.k, s.residual_pixel), at.residual, sum, at_sum);
  };
  if (at.bias != nullptr) add(Tensor(api, convolution.dtype(), 1, 1, 1, s.k, s.k), at.bias, y, at.y);
  if (at.residual != nullptr && !convolution.residual_last) add_residual(y, at.y);
  if (const std::optional<ActivationOf> activation = OneStep(api, convolution)) {
    activation->Run(handle, y, at.y, target, to.data);
  } else {
    RunSteps(api, handle, problem, y, at, scratch);
    CopyResult(api, handle, problem, at.y, to);
  }
  if (at.residual != nullptr && convolution.residual_last) add_residual(target, to.data);
}

void CopyResult(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionProblem& problem, const void* y,
                const PixelsAt& to) {
  const ConvolutionSizes& s = problem.sizes;
  if (y == to.data) return;
  CopyPixels(api, handle, problem.convolution.dtype(), {s.n, s.output_d * s.output_h, s.output_w, s.k}, y, s.y_pixel,
             to.data, to.pixel);
}

void CopyPixels(const cudnn::Api& api, cudnn::Handle handle, Dtype dtype, const Pixels& pixels, const void* from,
                std::int64_t from_pixel, void* to, std::int64_t to_pixel) {
  const Tensor source(api, dtype, pixels.n, pixels.h, pixels.w, pixels.c, from_pixel);
  const Tensor target(api, dtype, pixels.n, pixels.h, pixels.w, pixels.c, to_pixel);
  const cudnn::Status status = api.cudnnAddTensor(handle, &kOne, source.raw(), from, &kZero, target.raw(), to);
  api.Check(status, "cuDNN does not copy a part of a tensor");
}

}  // namespace onnxopt::cuda
