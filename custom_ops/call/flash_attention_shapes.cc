#include "call/flash_attention_shapes.h"

#include "call/dims.h"

namespace onnxopt {

void InferShapes(const FlashAttention& attention, OrtShapeInferContext* context) {
  const auto inputs = InputDims(context, attention.inputs);
  const std::optional<Dims>& q = inputs[attention.q.input];
  if (!q || q->size() < 3) return;
  SetOutputDims(context, 0, attention.output, {(*q)[0], (*q)[1], Dim{attention.heads * attention.values, ""}});
}

}  // namespace onnxopt
