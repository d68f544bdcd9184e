// Shapes in ONNX Runtime's graph, where dims may be symbolic or unknown.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dtype.h"
#include "ort.h"

namespace onnxopt {

// A dim: its extent, or -1 and a name.
struct Dim {
  std::int64_t extent = 1;
  std::string symbol;
};

using Dims = std::vector<Dim>;

// Of input k. ONNX Runtime gives an input of unknown rank as one of rank 0; nullopt stands for both, as they cannot be
// told apart.
std::optional<Dims> InputDims(OrtShapeInferContext* context, std::size_t k);

// The broadcast of two dims. A known extent other than 1 wins: the other is 1 or the same. Where two extents contradict
// each other the call will fail, unless what the model declares is wrong; the call knows better.
Dim Broadcast(const Dim& a, const Dim& b);

void SetOutput(OrtShapeInferContext* context, std::size_t k, Dtype dtype, const Dims& dims);

// Throws Error where the node has another number of inputs than the kernel.
void CheckInputCount(OrtShapeInferContext* context, std::size_t expected);

}  // namespace onnxopt
