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

  // data = activation(data)
  void Run(cudnn::Handle handle, const Tensor& tensor, void* data) const { Run(handle, tensor, data, tensor, data); }
  // to = scale * activation(from)
  void Run(cudnn::Handle handle, const Tensor& tensor, const void* from, const Tensor& target, void* to,
           float scale = kOne) const {
    const cudnn::Status status =
        api_.cudnnActivationForward(handle, raw_, &scale, tensor.raw(), from, &kZero, target.raw(), to);
    api_.Check(status, "cuDNN does not activate the result of a convolution");
  }

 private:
  const cudnn::Api& api_;
  cudnn::ActivationDescriptor raw_ = nullptr;
};

// A function of two tensors, element by element.
class OfTwo {
 public:
  OfTwo(const cudnn::Api& api, int mode) : api_(api) {
    api.Check(api.cudnnCreateOpTensorDescriptor(&raw_), "cuDNN makes no function of two tensors");
    const cudnn::Status status = api.cudnnSetOpTensorDescriptor(raw_, mode, cudnn::kFloat, cudnn::kPropagatesNan);
    if (status != cudnn::kSuccess) api.cudnnDestroyOpTensorDescriptor(raw_);
    api.Check(status, "cuDNN does not take a function of two tensors");
  }
  OfTwo(const OfTwo&) = delete;
  OfTwo& operator=(const OfTwo&) = delete;
  ~OfTwo() { api_.cudnnDestroyOpTensorDescriptor(raw_); }

  // to = function(from, scale * second). seconds: of the second, which may be broadcast.
  void Run(cudnn::Handle handle, const Tensor& tensor, const void* from, const Tensor& seconds, const void* second,
           const Tensor& target, void* to, float scale = kOne) const {
    const cudnn::Status status = api_.cudnnOpTensor(handle, raw_, &kOne, tensor.raw(), from, &scale, seconds.raw(),
                                                    second, &kZero, target.raw(), to);
    api_.Check(status, "cuDNN does not compute a function of the result of a convolution");
  }

 private:
  const cudnn::Api& api_;
  cudnn::OpTensorDescriptor raw_ = nullptr;
};

// gate = clip(y / 6 + 1 / 2) to 0 to 1; to = y * gate
void RunHardSwish(const cudnn::Api& api, cudnn::Handle handle, const Tensor& tensor, const void* y, void* gate,
                  const Tensor& target, void* to) {
  constexpr float kSixth = 1.0F / 6;
  // 1 / 2 is the sigmoid of 0. cuDNN 9.19 reads the number that cudnnSetTensor takes as a float, and its manual says as
  // an element of the tensor; 0 is the same in both.
  api.Check(api.cudnnSetTensor(handle, tensor.raw(), gate, &kZero), "cuDNN does not set a tensor");
  ActivationOf(api, cudnn::kActivationSigmoid).Run(handle, tensor, gate);
  api.Check(api.cudnnAddTensor(handle, &kSixth, tensor.raw(), y, &kOne, tensor.raw(), gate),
            "cuDNN does not scale the result of a convolution");
  ActivationOf(api, cudnn::kActivationClippedRelu, kOne).Run(handle, tensor, gate);
  OfTwo(api, cudnn::kOpTensorMultiply).Run(handle, tensor, y, tensor, gate, target, to);
}

// below = y - relu(y), times the slope of its channel; to = relu(y) + below
void RunPrelu(const cudnn::Api& api, cudnn::Handle handle, const Tensor& tensor, const Tensor& slopes, const void* y,
              const void* slope, void* below, const Tensor& target, void* to) {
  constexpr float kMinusOne = -1;
  const auto add = [&](const void* what, const Tensor& sum, void* at_sum) {
    api.Check(api.cudnnAddTensor(handle, &kOne, tensor.raw(), what, &kOne, sum.raw(), at_sum),
              "cuDNN does not add to the result of a convolution");
  };
  const ActivationOf relu(api, cudnn::kActivationRelu);
  relu.Run(handle, tensor, y, tensor, below, kMinusOne);
  add(y, tensor, below);
  OfTwo(api, cudnn::kOpTensorMultiply).Run(handle, tensor, below, slopes, slope, tensor, below);
  relu.Run(handle, tensor, y, target, to);
  add(below, target, to);
}

// to = activation(y). scratch: of EpilogueScratch().
void RunActivation(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionProblem& problem, const Tensor& y,
                   const ConvolutionPointers& at, const Tensor& target, const PixelsAt& to, void* scratch) {
  const Convolution& convolution = problem.convolution;
  const float value = convolution.activation_value;
  const auto activate = [&](int mode, float limit = 0) {
    ActivationOf(api, mode, limit).Run(handle, y, at.y, target, to.data);
  };
  switch (convolution.activation) {
    case ConvolutionActivation::kNone:
      return CopyResult(api, handle, problem, at.y, to);
    case ConvolutionActivation::kRelu:
      return activate(cudnn::kActivationRelu);
    case ConvolutionActivation::kSilu:
      return activate(cudnn::kActivationSwish);
    case ConvolutionActivation::kClip:
      return activate(cudnn::kActivationClippedRelu, value);
    case ConvolutionActivation::kLeakyRelu:
      if (value == 0) return activate(cudnn::kActivationRelu);
      return OfTwo(api, value <= 1 ? cudnn::kOpTensorMaximum : cudnn::kOpTensorMinimum)
          .Run(handle, y, at.y, y, at.y, target, to.data, value);
    case ConvolutionActivation::kHardswish:
      return RunHardSwish(api, handle, y, at.y, scratch, target, to.data);
    case ConvolutionActivation::kPrelu:
      const std::int64_t k = problem.sizes.k;
      return RunPrelu(api, handle, y, Tensor(api, convolution.dtype(), 1, 1, 1, k, k), at.y, at.slope, scratch, target,
                      to.data);
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
  RunActivation(api, handle, problem, y, at, target, to, scratch);
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
