#include "call/attention.h"

#include <string>

#include "call/tensors.h"
#include "program/shape.h"

namespace onnxopt {

AttentionCall OpenCall(const TokenAttention& attention, OrtKernelContext* context) {
  Shape shapes[kAttentionInputs];
  const void* inputs[kAttentionInputs] = {};
  for (std::size_t k = 0; k < attention.inputs; ++k) inputs[k] = InputTensor(context, k, &shapes[k]);
  const Shape& q = shapes[attention.q];
  const Shape& past = shapes[attention.past_k];
  const std::int64_t of_q = attention.heads * attention.width;
  const std::int64_t of_k = attention.groups * attention.width;
  const std::int64_t row = attention.k ? of_q : of_q + 2 * of_k;
  const auto fits = [&](const Shape& x, std::int64_t columns) {
    return x.rank == 3 && x.dims[0] == past.dims[0] && x.dims[1] == 1 && x.dims[2] == columns;
  };
  bool good = past.rank == 4 && past.dims[1] == attention.groups && past.dims[3] == attention.width &&
              past == shapes[attention.past_v] && fits(q, row);
  if (attention.k) good = good && fits(shapes[*attention.k], of_k) && fits(shapes[*attention.v], of_k);
  if (!good) {
    throw Error("one token's attention: q " + ToString(q) + ", past keys " + ToString(past) + ", past values " +
                ToString(shapes[attention.past_v]) + " do not fit together");
  }
  AttentionCall call{};
  call.batch = past.dims[0];
  call.past = past.dims[2];
  const auto part = [&](std::int64_t elements) {
    return static_cast<const char*>(inputs[attention.q]) + static_cast<std::size_t>(elements) * Size(attention.dtype);
  };
  call.q = inputs[attention.q];
  call.k = attention.k ? inputs[*attention.k] : part(of_q);
  call.v = attention.v ? inputs[*attention.v] : part(of_q + of_k);
  call.q_stride = row;
  call.k_stride = call.v_stride = attention.k ? of_k : row;
  call.past_k = inputs[attention.past_k];
  call.past_v = inputs[attention.past_v];
  Shape output = q;
  output.dims[2] = of_q;
  Shape present = past;
  present.dims[2] = past.dims[2] + 1;
  call.output = OutputTensor(context, 0, output);
  call.present_k = OutputTensor(context, 1, present);
  call.present_v = OutputTensor(context, 2, present);
  const bool left_out = call.output == nullptr || call.present_k == nullptr || call.present_v == nullptr;
  if (call.batch != 0 && left_out) {
    throw Error("an output of one token's attention is left out, which its function declares");
  }
  return call;
}

}  // namespace onnxopt
