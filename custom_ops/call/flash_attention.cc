#include "call/flash_attention.h"

#include <string>

#include "call/tensors.h"
#include "program/shape.h"

namespace onnxopt {
namespace {

constexpr std::int64_t kMaxTokens = std::int64_t{1} << 30U;

struct Read {
  HeadsPlace place;
  std::int64_t batch;
  std::int64_t tokens;
};

class Opening {
 public:
  Opening(const FlashAttention& attention, OrtKernelContext* context) : attention_(attention) {
    for (std::size_t k = 0; k < attention.inputs.size(); ++k) data_[k] = InputTensor(context, k, &shapes_[k]);
  }

  Read Find(const char* name, const Heads& heads, std::int64_t count, std::int64_t width) const {
    const Shape& shape = shapes_[heads.input];
    Read read{};
    const bool tokens = heads.row != 0;
    const bool fits = tokens ? shape.rank >= 3 && Elements(shape.dims + 2, shape.rank - 2) == heads.row
                             : shape.rank == 4 && shape.dims[1] == count && shape.dims[3] == width;
    if (!fits) Fail(name, shape);
    read.batch = shape.dims[0];
    read.tokens = shape.dims[tokens ? 1 : 2];
    if (read.tokens > kMaxTokens) Fail(name, shape);
    const auto first = static_cast<std::size_t>(heads.first) * Size(attention_.dtype());
    read.place.data = static_cast<const char*>(data_[heads.input]) + first;
    read.place.of_token = tokens ? heads.row : width;
    read.place.of_head = tokens ? heads.step : read.tokens * width;
    read.place.of_batch = read.tokens * (tokens ? heads.row : count * width);
    return read;
  }

  [[noreturn]] void Fail(const char* name, const Shape& shape) const {
    throw Error("attention of " + std::to_string(attention_.heads) + " heads of " + std::to_string(attention_.width) +
                " elements: " + name + " " + ToString(shape) + " does not fit");
  }

  const Shape& shape(std::size_t input) const { return shapes_[input]; }
  const void* data(std::size_t input) const { return data_[input]; }

 private:
  const FlashAttention& attention_;
  Shape shapes_[FlashAttention::kMaxInputs];
  const void* data_[FlashAttention::kMaxInputs] = {};
};

}  // namespace

FlashAttentionCall OpenCall(const FlashAttention& attention, OrtKernelContext* context) {
  const Opening open(attention, context);
  const Read q = open.Find("q", attention.q, attention.heads, attention.width);
  const Read k = open.Find("k", attention.k, attention.groups, attention.width);
  const Read v = open.Find("v", attention.v, attention.groups, attention.values);
  if (k.batch != q.batch) open.Fail("k", open.shape(attention.k.input));
  if (v.batch != q.batch || v.tokens != k.tokens) open.Fail("v", open.shape(attention.v.input));
  FlashAttentionCall call{};
  call.batch = q.batch;
  call.queries = q.tokens;
  call.keys = k.tokens;
  call.q = q.place;
  call.k = k.place;
  call.v = v.place;
  call.bias_period = 1;
  if (attention.bias) {
    const Shape& shape = open.shape(*attention.bias);
    const bool is_shared = attention.hidden == HiddenWeights::kOnce;  // by all queries
    const bool repeats =
        shape.rank == 4 && (shape.dims[0] == call.batch || (shape.dims[0] > 0 && call.batch % shape.dims[0] == 0));
    const bool fits = repeats && (shape.dims[1] == 1 || shape.dims[1] == attention.heads) &&
                      (shape.dims[2] == 1 || (shape.dims[2] == call.queries && !is_shared)) &&
                      shape.dims[3] == call.keys;
    if (!fits) open.Fail("the bias", shape);
    call.bias = open.data(*attention.bias);
    const std::int64_t of_head = shape.dims[2] * call.keys;
    call.bias_query = shape.dims[2] == 1 ? 0 : call.keys;
    call.bias_head = shape.dims[1] == 1 ? 0 : of_head;
    call.bias_batch = of_head * shape.dims[1];
    call.bias_period = shape.dims[0];
  }
  if (attention.sinks) {
    const Shape& shape = open.shape(*attention.sinks);
    if (shape.rank != 1 || shape.dims[0] != attention.heads) open.Fail("the sinks", shape);
    call.sinks = open.data(*attention.sinks);
  }
  Shape result;
  result.rank = 3;
  result.dims[0] = call.batch;
  result.dims[1] = call.queries;
  result.dims[2] = attention.heads * attention.values;
  call.y = OutputTensor(context, 0, result);
  if (result.count() == 0) call.y = nullptr;
  return call;
}

}  // namespace onnxopt
