#include "call/attention.h"

#include <string>

#include "call/tensors.h"
#include "program/shape.h"

namespace onnxopt {
namespace {

// Whether `x` holds the new tokens with so many elements each, in heads or not.
bool Fits(const Shape& x, std::int64_t batch, std::int64_t tokens, std::int64_t heads, std::int64_t width) {
  const bool in_heads = x.rank == 4 && x.dims[2] == heads && x.dims[3] == width;
  const bool flat = x.rank == 3 && x.dims[2] == heads * width;
  return (flat || in_heads) && x.dims[0] == batch && x.dims[1] == tokens;
}

// Reads how a mask lies. False where it does not broadcast to the scores.
bool OpenMask(const Shape& mask, const TokenAttention& attention, AttentionCall* call) {
  const std::int64_t scores[] = {call->batch, attention.heads, attention.tokens, call->keys};
  if (mask.rank != 4 || mask.dims[3] != scores[3]) return false;
  std::int64_t* const strides[] = {&call->mask_sequence, &call->mask_head, &call->mask_token};
  std::int64_t step = mask.dims[3];
  for (std::size_t axis = 3; axis-- > 0;) {
    if (mask.dims[axis] != 1 && mask.dims[axis] != scores[axis]) return false;
    *strides[axis] = mask.dims[axis] == 1 ? 0 : step;
    step *= mask.dims[axis];
  }
  return true;
}

// Throws Error where there are not as many scales as `per` says.
CallScales OpenScales(const TokenAttention& attention, ScalePer per, const void* data, const Shape& shape) {
  const bool heads = per == ScalePer::kHead || per == ScalePer::kChannel;
  const bool elements = per == ScalePer::kElement || per == ScalePer::kChannel;
  const std::int64_t of_head = elements ? attention.width : 1;
  const std::int64_t wanted = of_head * (heads ? attention.groups : 1);
  if (shape.count() != static_cast<std::uint64_t>(wanted)) {
    throw Error("the cache of an attention has scales " + ToString(shape) + ", and " + std::to_string(wanted) +
                " are needed");
  }
  return {data, heads ? of_head : 0, elements ? 1 : 0};
}

}  // namespace

TokenAttention Of(const AttentionCall& call, const TokenAttention& attention) {
  TokenAttention sized = attention;
  sized.tokens = call.tokens;
  return sized;
}

AttentionCall OpenCall(const TokenAttention& meaning, OrtKernelContext* context) {
  Shape shapes[TokenAttention::kMaxInputs];
  const void* inputs[TokenAttention::kMaxInputs] = {};
  for (std::size_t k = 0; k < meaning.inputs.size(); ++k) inputs[k] = InputTensor(context, k, &shapes[k]);
  const Shape& q = shapes[meaning.q];
  AttentionCall call{};
  call.tokens = meaning.tokens != 0 ? meaning.tokens : q.rank > 1 ? q.dims[1] : 0;
  const TokenAttention attention = Of(call, meaning);
  const Shape& past = shapes[attention.past_k];
  const std::int64_t of_q = attention.heads * attention.width;
  const std::int64_t of_k = attention.groups * attention.width;
  const std::int64_t row = attention.k ? of_q : of_q + 2 * of_k;
  const auto fits = [&](const Shape& x, std::int64_t heads) {
    return Fits(x, past.dims[0], attention.tokens, heads, attention.width);
  };
  bool good = past.rank == 4 && past.dims[1] == attention.groups && past.dims[3] == attention.width &&
              past == shapes[attention.past_v] && fits(q, row / attention.width);
  if (attention.k) {
    good = good && fits(shapes[*attention.k], attention.groups) && fits(shapes[*attention.v], attention.groups);
  }
  if (good) {
    call.batch = past.dims[0];
    call.past = past.dims[2];
    call.keys = call.past + (attention.slots ? 0 : attention.tokens);
    if (attention.mask) good = OpenMask(shapes[*attention.mask], attention, &call);
  }
  if (good && attention.slots) {
    const Shape& slots = shapes[*attention.slots];
    good = slots.rank == 2 && slots.dims[0] == attention.tokens && slots.dims[1] == 1;
  }
  if (!good) {
    const std::string mask = attention.mask ? ", mask " + ToString(shapes[*attention.mask]) : "";
    throw Error("attention of new tokens: q " + ToString(q) + ", past keys " + ToString(past) + ", past values " +
                ToString(shapes[attention.past_v]) + mask + " do not fit together");
  }
  const auto part = [&](std::int64_t elements) {
    return static_cast<const char*>(inputs[attention.q]) + static_cast<std::size_t>(elements) * Size(attention.dtype());
  };
  call.q = inputs[attention.q];
  call.k = attention.k ? inputs[*attention.k] : part(of_q);
  call.v = attention.v ? inputs[*attention.v] : part(of_q + of_k);
  call.q_stride = row * attention.tokens;
  call.k_stride = call.v_stride = (attention.k ? of_k : row) * attention.tokens;
  call.past_k = inputs[attention.past_k];
  call.past_v = inputs[attention.past_v];
  call.mask = attention.mask ? inputs[*attention.mask] : nullptr;
  if (attention.codes) {
    const CacheCodes& codes = *attention.codes;
    call.k_scales = OpenScales(attention, codes.k_per, inputs[codes.k_scale], shapes[codes.k_scale]);
    call.v_scales = OpenScales(attention, codes.v_per, inputs[codes.v_scale], shapes[codes.v_scale]);
  }
  call.slots = attention.slots ? static_cast<const std::int64_t*>(inputs[*attention.slots]) : nullptr;
  Shape output = q;
  output.rank = 3;
  output.dims[2] = of_q;
  Shape present = past;
  present.dims[2] = call.keys;
  call.output = OutputTensor(context, 0, output);
  call.present_k = OutputTensor(context, 1, present);
  call.present_v = OutputTensor(context, 2, present);
  const bool left_out = call.output == nullptr || call.present_k == nullptr || call.present_v == nullptr;
  if (call.batch != 0 && left_out) {
    throw Error("an output of new tokens' attention is left out, which its function declares");
  }
  return call;
}

}  // namespace onnxopt
