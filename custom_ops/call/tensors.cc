#include "call/tensors.h"

namespace onnxopt {
namespace {

class TensorInfo {
 public:
  explicit TensorInfo(const OrtValue* value) { Check(Ort().GetTensorTypeAndShape(value, &info_)); }
  TensorInfo(const TensorInfo&) = delete;
  TensorInfo& operator=(const TensorInfo&) = delete;
  ~TensorInfo() { Ort().ReleaseTensorTypeAndShapeInfo(info_); }

  Shape shape() const {
    Shape shape;
    Check(Ort().GetDimensionsCount(info_, &shape.rank));
    if (shape.rank > kMaxRank) {
      throw Error("a tensor of rank " + std::to_string(shape.rank) + ", the limit is " + std::to_string(kMaxRank));
    }
    Check(Ort().GetDimensions(info_, shape.dims, shape.rank));
    return shape;
  }

 private:
  OrtTensorTypeAndShapeInfo* info_ = nullptr;
};

// The data of a tensor. C API has one function for inputs and outputs; inputs are only read.
void* Data(const OrtValue* value) {
  void* data = nullptr;
  Check(Ort().GetTensorMutableData(const_cast<OrtValue*>(value), &data));
  return data;
}

}  // namespace

const void* InputTensor(OrtKernelContext* context, std::size_t k, Shape* shape) {
  const OrtValue* value = nullptr;
  Check(Ort().KernelContext_GetInput(context, k, &value));
  if (value == nullptr) throw Error("input " + std::to_string(k) + " is missing");
  *shape = TensorInfo(value).shape();
  return Data(value);
}

void* OutputTensor(OrtKernelContext* context, std::size_t k, const Shape& shape) {
  OrtValue* value = nullptr;
  Check(Ort().KernelContext_GetOutput(context, k, shape.dims, shape.rank, &value));
  return value == nullptr ? nullptr : Data(value);
}

}  // namespace onnxopt
