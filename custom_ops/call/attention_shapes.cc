#include "call/attention_shapes.h"

#include "call/dims.h"

namespace onnxopt {

void InferShapes(const TokenAttention& attention, OrtShapeInferContext* context) {
  const auto inputs = InputDims(context, attention.inputs);
  const std::optional<Dims>& past = inputs[attention.past_k];
  if (!past || past->size() != 4) return;
  Dims present = *past;
  present[2] = present[2].extent < 0 ? Dim{-1, FreshDimName()} : Dim{present[2].extent + 1, ""};
  SetOutputDims(context, 0, attention.dtype, {present[0], Dim{1, ""}, Dim{attention.heads * attention.width, ""}});
  SetOutputDims(context, 1, attention.dtype, present);
  SetOutputDims(context, 2, attention.dtype, present);
}

}  // namespace onnxopt
