#include "call/attention_shapes.h"

#include <limits>

#include "call/dims.h"

namespace onnxopt {

void InferShapes(const TokenAttention& attention, OrtShapeInferContext* context) {
  const auto inputs = InputDims(context, attention.inputs);
  const std::optional<Dims>& past = inputs[attention.past_k];
  if (!past || past->size() != 4) return;
  Dims present = *past;
  const std::optional<Dims>& q = inputs[attention.q];
  Dim tokens{attention.tokens, ""};
  if (attention.tokens == 0) tokens = q && q->size() == 3 ? (*q)[1] : Dim{-1, FreshDimName()};
  if (attention.tokens == 0) {
    present[2] = Dim{-1, FreshDimName()};
  } else if (!attention.slots) {
    const std::int64_t most = std::numeric_limits<std::int64_t>::max() - attention.tokens;
    const bool known = present[2].extent >= 0 && present[2].extent <= most;
    present[2] = known ? Dim{present[2].extent + attention.tokens, ""} : Dim{-1, FreshDimName()};
  }
  const Dim columns{attention.heads * attention.width, ""};
  SetOutputDims(context, 0, attention.dtype, {present[0], tokens, columns});
  SetOutputDims(context, 1, attention.Cached(), present);
  SetOutputDims(context, 2, attention.Cached(), present);
}

}  // namespace onnxopt
