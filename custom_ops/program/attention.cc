#include "program/attention.h"

#include <cmath>
#include <string>

#include "call/dims.h"
#include "call/tensors.h"
#include "support/json_reader.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kMostHeads = 4096;
constexpr std::uint64_t kMostWidth = 512;
constexpr std::size_t kOutputs = 3;

}  // namespace

TokenAttention ReadTokenAttention(const JsonReader& json, const std::vector<Dtype>& inputs,
                                  const std::vector<Dtype>& outputs) {
  TokenAttention attention;
  attention.inputs = inputs.size();
  if (json.Has("k") != json.Has("v")) json.Fail("has one of k and v");
  const std::size_t count = json.Has("k") ? kAttentionInputs : kAttentionInputs - 2;
  if (inputs.size() != count) json["inputs"].Fail("are not " + std::to_string(count));
  if (outputs.size() != kOutputs) json["outputs"].Fail("are not " + std::to_string(kOutputs));
  const auto position = [&](const char* field) { return static_cast<std::size_t>(json[field].Number(0, count - 1)); };
  attention.q = position("q");
  if (json.Has("k")) attention.k = position("k");
  if (json.Has("v")) attention.v = position("v");
  attention.past_k = position("past_k");
  attention.past_v = position("past_v");
  const auto number = [&](const char* field, std::uint64_t most) {
    return static_cast<std::int64_t>(json[field].Number(1, most));
  };
  attention.heads = number("heads", kMostHeads);
  attention.groups = number("groups", kMostHeads);
  attention.width = number("width", kMostWidth);
  if (attention.heads % attention.groups != 0) json["heads"].Fail("is no multiple of groups");
  if (!json["scale"].value().is_number()) json["scale"].Fail("is not a number");
  attention.scale = json["scale"].value().get<float>();
  if (!std::isfinite(attention.scale)) json["scale"].Fail("is not a finite float32");
  attention.dtype = outputs[0];
  for (const Dtype dtype : inputs) {
    if (dtype != attention.dtype) json["inputs"].Fail("differ from the output's dtype");
  }
  for (const Dtype dtype : outputs) {
    if (dtype != attention.dtype) json["outputs"].Fail("differ in dtype");
  }
  if (Row(attention.dtype).compute != Dtype::kFloat32 || Size(attention.dtype) != 2) {
    json["outputs"].Fail("is " + std::string(Row(attention.dtype).name) + ", no float of 16 bits");
  }
  return attention;
}

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
  if (call.output == nullptr || call.present_k == nullptr || call.present_v == nullptr) {
    throw Error("an output of one token's attention is left out, which its function declares");
  }
  return call;
}

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
