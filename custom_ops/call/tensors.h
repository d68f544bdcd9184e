// The tensors of one call of a fused node, through ONNX Runtime's C API.
#pragma once

#include "program/shape.h"
#include "support/ort.h"

namespace onnxopt {

// Input `k` of the call: its shape and its data, which are only read. Throws Error where it is missing.
const void* InputTensor(OrtKernelContext* context, std::size_t k, Shape* shape);

// Allocates output `k` with this shape and returns where its elements go; nullptr where nothing wants it.
void* OutputTensor(OrtKernelContext* context, std::size_t k, const Shape& shape);

}  // namespace onnxopt
