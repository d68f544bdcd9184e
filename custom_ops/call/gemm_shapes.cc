#include "call/gemm_shapes.h"

#include <algorithm>
#include <optional>

#include "call/dims.h"

namespace onnxopt {
namespace {

// One of so many equal parts of a dim.
Dim Part(const Dim& whole, std::int64_t parts) {
  return whole.extent < 0 ? Dim{-1, FreshDimName()} : Dim{whole.extent / parts, ""};
}

std::optional<Dims> OutputDims(const Gemm& gemm, const std::vector<std::optional<Dims>>& inputs) {
  if (gemm.residual_shape) return inputs[*gemm.residual];
  const std::optional<Dims>& a = inputs[gemm.a];
  std::optional<Dims> b = inputs[gemm.b];
  if (gemm.packed && a && b && !a->empty() && !b->empty()) b = Dims{(*b)[0], a->back()};
  if (!a || !b || a->size() < 2 || b->size() < 2) return std::nullopt;
  const std::size_t rank = std::max(a->size(), b->size());
  Dims dims(rank);
  for (const auto& operand : {*a, *b}) {
    const std::size_t first = rank - operand.size();
    for (std::size_t k = 0; k + 2 < operand.size(); ++k) dims[first + k] = Broadcast(dims[first + k], operand[k]);
  }
  dims[rank - 2] = (*a)[a->size() - (gemm.transpose_a ? 1 : 2)];
  dims[rank - 1] = (*b)[b->size() - (gemm.transpose_b ? 2 : 1)];
  if (gemm.gate != Activation::kNone) dims[rank - 1] = Part(dims[rank - 1], 2);
  if (gemm.parts > 1) dims[rank - 1] = Part(dims[rank - 1], static_cast<std::int64_t>(gemm.parts));
  return dims;
}

}  // namespace

void InferShapes(const Gemm& gemm, OrtShapeInferContext* context) {
  const std::optional<Dims> dims = OutputDims(gemm, InputDims(context, gemm.inputs));
  if (!dims) return;
  for (std::size_t k = 0; k < gemm.parts; ++k) SetOutputDims(context, k, gemm.dtype, *dims);
}

}  // namespace onnxopt
