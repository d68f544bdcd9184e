// The tensors of one call.
#pragma once

#include <string>

#include "ort.h"
#include "shape.h"

namespace onnxopt {

// An input's elements and shape. Throws Error where the input is missing or has too many dims.
inline const void* InputTensor(OrtKernelContext* context, std::size_t k, Shape* shape) {
  const OrtValue* value = nullptr;
  Check(Ort().KernelContext_GetInput(context, k, &value));
  if (value == nullptr) throw Error("input " + std::to_string(k) + " is missing");
  OrtTensorTypeAndShapeInfo* info = nullptr;
  Check(Ort().GetTensorTypeAndShape(value, &info));
  OrtStatus* status = Ort().GetDimensionsCount(info, &shape->rank);
  if (status == nullptr && shape->rank <= kMaxRank) status = Ort().GetDimensions(info, shape->dims, shape->rank);
  Ort().ReleaseTensorTypeAndShapeInfo(info);
  Check(status);
  if (shape->rank > kMaxRank) {
    throw Error("a tensor of rank " + std::to_string(shape->rank) + ", the limit is " + std::to_string(kMaxRank));
  }
  void* data = nullptr;
  Check(Ort().GetTensorMutableData(const_cast<OrtValue*>(value), &data));  // inputs are only read
  return data;
}

// Allocates an output and returns where its elements go.
inline void* OutputTensor(OrtKernelContext* context, std::size_t k, const Shape& shape) {
  OrtValue* value = nullptr;
  Check(Ort().KernelContext_GetOutput(context, k, shape.dims, shape.rank, &value));
  if (value == nullptr) throw Error("output " + std::to_string(k) + " is missing");
  void* data = nullptr;
  Check(Ort().GetTensorMutableData(value, &data));
  return data;
}

}  // namespace onnxopt
