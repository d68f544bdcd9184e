// Dims of a node's inputs and outputs in ONNX Runtime's graph, where they may be symbolic or unknown.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "program/dtype.h"
#include "program/indexing.h"
#include "support/ort.h"

namespace onnxopt {

// A dim: its extent, or -1 and a name.
struct Dim {
  std::int64_t extent = 1;
  std::string symbol;
};

using Dims = std::vector<Dim>;

// ONNX Runtime would take -1 without a name for an extent. Dims of one name are the same, so this one is never given
// twice.
std::string FreshDimName();

// The dims of every input. ONNX Runtime gives an input of unknown rank as one of rank 0; nullopt stands for both, as
// they cannot be told apart. Throws Error where the node has another number of inputs.
std::vector<std::optional<Dims>> InputDims(OrtShapeInferContext* context, std::size_t expected);

// The product of two dims: of extents where both are known and it fits 64 bits, else unknown.
Dim Times(const Dim& a, const Dim& b);

// The broadcast of two dims. A known extent other than 1 wins: the other is 1 or the same. Where two extents contradict
// each other the call will fail, unless what the model declares is wrong; the call knows better.
Dim Broadcast(const Dim& a, const Dim& b);

void SetOutputDims(OrtShapeInferContext* context, std::size_t k, Dtype dtype, const Dims& dims);

// The dims of output `k` of a kernel with index operations.
Dims IndexedDims(const Indexing& index, std::size_t k, const std::vector<std::optional<Dims>>& inputs);

}  // namespace onnxopt
