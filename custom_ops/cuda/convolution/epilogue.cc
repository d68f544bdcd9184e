#include "cuda/convolution/epilogue.h"

#include <algorithm>
#include <limits>
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
  ActivationOf(const cudnn::Api& api, ConvolutionActivation activation) : api_(api) {
    api.Check(api.cudnnCreateActivationDescriptor(&raw_), "cuDNN makes no activation");
    const int mode = activation == ConvolutionActivation::kSilu ? cudnn::kActivationSwish : cudnn::kActivationRelu;
    const cudnn::Status status = api.cudnnSetActivationDescriptor(raw_, mode, cudnn::kPropagatesNan, 0);
    if (status != cudnn::kSuccess) api.cudnnDestroyActivationDescriptor(raw_);
    api.Check(status, "cuDNN does not take an activation");
  }
  ActivationOf(const ActivationOf&) = delete;
  ActivationOf& operator=(const ActivationOf&) = delete;
  ~ActivationOf() { api_.cudnnDestroyActivationDescriptor(raw_); }

  cudnn::ActivationDescriptor raw() const { return raw_; }

 private:
  const cudnn::Api& api_;
  cudnn::ActivationDescriptor raw_ = nullptr;
};

}  // namespace

void RunEpilogue(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionProblem& problem,
                 const ConvolutionPointers& at) {
  const Convolution& convolution = problem.convolution;
  const ConvolutionSizes& s = problem.sizes;
  const Tensor y(api, convolution.dtype, s.n, s.output_h, s.output_w, s.k, s.y_pixel);
  const auto add = [&](const Tensor& tensor, const void* data) {
    const cudnn::Status status = api.cudnnAddTensor(handle, &kOne, tensor.raw(), data, &kOne, y.raw(), at.y);
    api.Check(status, "cuDNN does not add to the result of a convolution");
  };
  const auto add_residual = [&] {
    add(Tensor(api, convolution.dtype, s.n, s.output_h, s.output_w, s.k, s.residual_pixel), at.residual);
  };
  if (at.bias != nullptr) add(Tensor(api, convolution.dtype, 1, 1, 1, s.k, s.k), at.bias);
  if (at.residual != nullptr && !convolution.residual_last) add_residual();
  if (convolution.activation != ConvolutionActivation::kNone) {
    const ActivationOf activation(api, convolution.activation);
    const cudnn::Status status =
        api.cudnnActivationForward(handle, activation.raw(), &kOne, y.raw(), at.y, &kZero, y.raw(), at.y);
    api.Check(status, "cuDNN does not activate the result of a convolution");
  }
  if (at.residual != nullptr && convolution.residual_last) add_residual();
}

void CopyPixels(const cudnn::Api& api, cudnn::Handle handle, Dtype dtype, const Pixels& pixels, const void* from,
                std::int64_t from_pixel, void* to, std::int64_t to_pixel) {
  const Tensor source(api, dtype, pixels.n, pixels.h, pixels.w, pixels.c, from_pixel);
  const Tensor target(api, dtype, pixels.n, pixels.h, pixels.w, pixels.c, to_pixel);
  const cudnn::Status status = api.cudnnAddTensor(handle, &kOne, source.raw(), from, &kZero, target.raw(), to);
  api.Check(status, "cuDNN does not copy a part of a tensor");
}

}  // namespace onnxopt::cuda
