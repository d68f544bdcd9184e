#include "call/attention_shapes.h"

#include <limits>

#include "call/dims.h"

namespace onnxopt {

void InferShapes(const TokenAttention& attention, OrtShapeInferContext* context) {
  const auto inputs = InputDims(context, attention.inputs);
  const std::optional<Dims>& past = inputs[attention.past_k];
  if (!past || past->size() != 4) return;
  Dims present = *past;
  const bool grows = present[2].extent >= 0 && present[2].extent < std::numeric_limits<std::int64_t>::max();
  present[2] = grows ? Dim{present[2].extent + 1, ""} : Dim{-1, FreshDimName()};
  SetOutputDims(context, 0, attention.dtype, {present[0], Dim{1, ""}, Dim{attention.heads * attention.width, ""}});
  SetOutputDims(context, 1, attention.dtype, present);
  SetOutputDims(context, 2, attention.dtype, present);
}

}  // namespace onnxopt
